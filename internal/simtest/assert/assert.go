// Package assert checks values. A test goes on where they differ; package
// require has the same functions for what it cannot go on without.
package assert

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// T is a *testing.T, a *testing.B, or a *rapid.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// NoError reports an error, after what about says: a format and its arguments.
func NoError(t T, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s", Message(about, "%v", err))
	}
}

// Equal reports an error unless got == want. It says what was compared if about
// has a format and its arguments.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s", Differ(got, want, about))
	}
}

// NotEqual reports an error if got == other.
func NotEqual[V comparable](t T, got, other V, about ...any) {
	t.Helper()
	if got == other {
		t.Errorf("%s", Message(about, "got %+v", got))
	}
}

// True reports an error unless ok.
func True(t T, ok bool, about ...any) {
	t.Helper()
	if !ok {
		t.Errorf("%s", Message(about, "got false"))
	}
}

// False reports an error if bad.
func False(t T, bad bool, about ...any) {
	t.Helper()
	if bad {
		t.Errorf("%s", Message(about, "got true"))
	}
}

// Contains reports an error unless part is in s.
func Contains(t T, s, part string, about ...any) {
	t.Helper()
	if !strings.Contains(s, part) {
		t.Errorf("%s", Message(about, "%q is not in %q", part, s))
	}
}

// ErrorIs reports an error unless errors.Is(err, want).
func ErrorIs(t T, err, want error, about ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s", Message(about, "got error %v, want %v", err, want))
	}
}

// ErrorContains reports an error unless err has a text with part in it; part "" stands for no error.
func ErrorContains(t T, err error, part string, about ...any) {
	t.Helper()
	if part == "" && err != nil || part != "" && (err == nil || !strings.Contains(err.Error(), part)) {
		t.Errorf("%s", Message(about, "got error %v, want one with %q", err, part))
	}
}

// EqualSlices reports an error unless both slices have the same elements.
func EqualSlices[S ~[]E, E comparable](t T, got, want S, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s", Differ(got, want, about))
	}
}

// DeepEqual reports an error unless reflect.DeepEqual(got, want).
func DeepEqual[V any](t T, got, want V, about ...any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s", Differ(got, want, about))
	}
}

// Differ is the message about two values which differ.
func Differ(got, want any, about []any) string {
	return Message(about, "got %+v, want %+v", got, want)
}

// Message says what is wrong, after what about says, if anything.
func Message(about []any, format string, args ...any) string {
	s := fmt.Sprintf(format, args...)
	if len(about) > 0 {
		s = fmt.Sprintf(about[0].(string), about[1:]...) + ": " + s
	}
	return s
}
