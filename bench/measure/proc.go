// Package measure reads what processes use, and what the machine can do.
package measure

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU returns the processor time, user's and system's, that processes have used:
// to within 10 ms each. One that has ended counts as none, as in RSS: a server's
// helpers come and go.
func CPU(pids ...int) (sum time.Duration, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
		if len(f) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
		}
		for _, ticks := range f[11:13] {
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			sum += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100 on Linux
		}
	}
	return sum, nil
}

// RSS returns the resident memory of processes in bytes: all of it, and without
// mapped files.
func RSS(pids ...int) (all, anon int64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 2 {
				continue
			}
			n, _ := strconv.ParseInt(f[1], 10, 64)
			switch f[0] {
			case "VmRSS:":
				all += n << 10
			case "RssAnon:":
				anon += n << 10
			}
		}
	}
	return all, anon, nil
}
