// Package require ends a test that cannot go on. Its functions are those of package assert.
package require

import "github.com/qlogd/qlogd/internal/simtest/assert"

// T is a *testing.T, a *testing.B, or a *rapid.T.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// fatal ends the test where an assertion would only report an error.
type fatal struct{ T }

func (f fatal) Errorf(format string, args ...any) {
	f.Helper()
	f.Fatalf(format, args...)
}

// NoError ends the test if there is an error, after what about says: a format
// and its arguments.
func NoError(t T, err error, about ...any) {
	t.Helper()
	assert.NoError(fatal{t}, err, about...)
}

// Equal ends the test unless got == want. It says what was compared if about
// has a format and its arguments.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	assert.Equal(fatal{t}, got, want, about...)
}

// NotEqual ends the test if got == other.
func NotEqual[V comparable](t T, got, other V, about ...any) {
	t.Helper()
	assert.NotEqual(fatal{t}, got, other, about...)
}

// True ends the test unless ok.
func True(t T, ok bool, about ...any) {
	t.Helper()
	assert.True(fatal{t}, ok, about...)
}

// False ends the test if bad.
func False(t T, bad bool, about ...any) {
	t.Helper()
	assert.False(fatal{t}, bad, about...)
}

// Contains ends the test unless part is in s.
func Contains(t T, s, part string, about ...any) {
	t.Helper()
	assert.Contains(fatal{t}, s, part, about...)
}

// ErrorIs ends the test unless errors.Is(err, want).
func ErrorIs(t T, err, want error, about ...any) {
	t.Helper()
	assert.ErrorIs(fatal{t}, err, want, about...)
}

// ErrorContains ends the test unless err has a text with part in it; part "" stands for no error.
func ErrorContains(t T, err error, part string, about ...any) {
	t.Helper()
	assert.ErrorContains(fatal{t}, err, part, about...)
}

// EqualSlices ends the test unless both slices have the same elements.
func EqualSlices[S ~[]E, E comparable](t T, got, want S, about ...any) {
	t.Helper()
	assert.EqualSlices(fatal{t}, got, want, about...)
}

// DeepEqual ends the test unless reflect.DeepEqual(got, want).
func DeepEqual[V any](t T, got, want V, about ...any) {
	t.Helper()
	assert.DeepEqual(fatal{t}, got, want, about...)
}
