// Package require ends a test that cannot go on.
package require

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// T is a *testing.T, a *testing.B, or a *rapid.T.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// NoError ends the test if there is an error, after what about says: a format
// and its arguments.
func NoError(t T, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s", assert.Message(about, "%v", err))
	}
}

// Equal ends the test unless got == want. It says what was compared if about
// has a format and its arguments.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s", assert.Differ(got, want, about))
	}
}

// NotEqual ends the test if got == other.
func NotEqual[V comparable](t T, got, other V, about ...any) {
	t.Helper()
	if got == other {
		t.Fatalf("%s", assert.Message(about, "got %+v", got))
	}
}

// True ends the test unless ok.
func True(t T, ok bool, about ...any) {
	t.Helper()
	if !ok {
		t.Fatalf("%s", assert.Message(about, "got false"))
	}
}

// False ends the test if bad.
func False(t T, bad bool, about ...any) {
	t.Helper()
	if bad {
		t.Fatalf("%s", assert.Message(about, "got true"))
	}
}

// Contains ends the test unless part is in s.
func Contains(t T, s, part string, about ...any) {
	t.Helper()
	if !strings.Contains(s, part) {
		t.Fatalf("%s", assert.Message(about, "%q is not in %q", part, s))
	}
}

// ErrorIs ends the test unless errors.Is(err, want).
func ErrorIs(t T, err, want error, about ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s", assert.Message(about, "got error %v, want %v", err, want))
	}
}

// EqualSlices ends the test unless both slices have the same elements.
func EqualSlices[S ~[]E, E comparable](t T, got, want S, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s", assert.Differ(got, want, about))
	}
}

// DeepEqual ends the test unless reflect.DeepEqual(got, want).
func DeepEqual[V any](t T, got, want V, about ...any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s", assert.Differ(got, want, about))
	}
}
