package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestCompareLogs: what may differ between nodes, and what may not.
func TestCompareLogs(t *testing.T) {
	type files map[int]string // first index → bytes
	for _, c := range []struct {
		name  string
		a, b  files
		equal bool
	}{
		{"the same", files{1: "aaa", 4: "bb"}, files{1: "aaa", 4: "bb"}, true},
		{"one is behind in its newest segment", files{1: "aaa", 4: "bb"}, files{1: "aaa", 4: "b"}, true},
		{"one is behind by a segment", files{1: "aaa", 4: "bb"}, files{1: "aa"}, true},
		{"one begins later", files{1: "aaa", 4: "bb", 6: "c"}, files{4: "bb", 6: "cc"}, true},
		{"one ends before the other begins", files{1: "aaa", 4: "b"}, files{6: "c"}, true},
		{"one is empty", files{1: "a"}, files{}, true},
		{"a byte differs", files{1: "aaa", 4: "bb"}, files{1: "aab", 4: "bb"}, false},
		{"a byte differs in the newest", files{1: "aaa", 4: "bb"}, files{1: "aaa", 4: "ba"}, false},
		{"a sealed one is shorter", files{1: "aaa", 4: "bb"}, files{1: "aa", 4: "bb"}, false},
		{"the newest goes on where the other's is sealed", files{1: "aaa", 4: "b"}, files{1: "aaab"}, false},
		{"cut at another place", files{1: "aaa", 4: "b", 5: "b"}, files{1: "aaa", 4: "bb", 6: "c"}, false},
		{"one lacks a segment in the middle", files{1: "aaa", 4: "b", 5: "c"}, files{1: "aaa", 5: "c"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			write := func(fs files) string {
				dir := t.TempDir()
				if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
					t.Fatal(err)
				}
				for first, bytes := range fs {
					if err := os.WriteFile(filepath.Join(dir, "log", fmt.Sprintf("%020d.seg", first)), []byte(bytes), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				return dir
			}
			a, b := write(c.a), write(c.b)
			for _, err := range []error{CompareLogs(a, b), CompareLogs(b, a)} {
				if (err == nil) != c.equal {
					t.Error(err)
				}
			}
		})
	}
}
