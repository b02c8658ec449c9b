// Package require ends a test that cannot go on.
package require

import (
	"reflect"
	"slices"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// T is a *testing.T, a *testing.B, or a *rapid.T.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// NoError ends the test if there is an error.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
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
