// Package assert compares values. A test goes on where they differ; package
// require has the same functions for what it cannot go on without.
package assert

import (
	"fmt"
	"reflect"
	"slices"
)

// T is a *testing.T, a *testing.B, or a *rapid.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal reports an error unless got == want. It says what was compared if about
// has a format and its arguments.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s", Differ(got, want, about))
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
	s := fmt.Sprintf("got %+v, want %+v", got, want)
	if len(about) > 0 {
		s = fmt.Sprintf(about[0].(string), about[1:]...) + ": " + s
	}
	return s
}
