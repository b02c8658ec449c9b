package invariants

import (
	"os"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections"
)

// TestCheck: a state with something of everything has no contradiction. (The mistakes that
// internal/simtest/planted plants are found by it, among others.)
func TestCheck(t *testing.T) {
	f, err := os.Open("../../../projections/testdata/state.golden")
	require.NoError(t, err)
	defer f.Close()
	s, err := projections.Load(f)
	require.NoError(t, err)
	require.NoError(t, Check(s))
}
