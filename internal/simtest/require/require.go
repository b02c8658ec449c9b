// Package require has what a test cannot go on without.
package require

// T is a *testing.T, a *testing.B, or a *rapid.T.
type T interface {
	Helper()
	Fatal(args ...any)
}

// NoError ends the test if there is an error.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
