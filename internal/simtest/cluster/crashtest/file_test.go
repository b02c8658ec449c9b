package crashtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestHistoryFile judges a history that a failed campaign left:
//
//	CRASH_HISTORY=/tmp/qlogd-history-1.jsonl go test -v -run TestHistoryFile ./…/crashtest
func TestHistoryFile(t *testing.T) {
	path := os.Getenv("CRASH_HISTORY")
	if path == "" {
		t.Skip("CRASH_HISTORY names no history")
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	h := NewHistory()
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var op Op
		if err := dec.Decode(&op); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		h.Add(op)
	}
	judge(t, h, false)
	linear, undecided := judgeLinear(h.Ops(), time.Minute)
	for _, v := range linear {
		t.Error(v)
	}
	t.Logf("%d lanes could not be decided in time", undecided)
	summarize(t, h)
}
