package measure

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Calibration is what the machine can do at a moment.
type Calibration struct {
	At       time.Time `json:"at"`
	SHA256   float64   `json:"sha256_mb_per_second"` // one core, median of nine
	SyncP50  float64   `json:"fdatasync_p50_ms"`     // append of 4 KiB
	SyncP99  float64   `json:"fdatasync_p99_ms"`
	LoadAvg  string    `json:"load_average"`
	StealPct float64   `json:"steal_percent"` // of this moment's processor time that others took
}

// Calibrate measures for about a second, with a file in dir.
func Calibrate(dir string) (*Calibration, error) {
	steal, total := stolen()
	block := bytes.Repeat([]byte("qlogd"), 1<<20/5)
	var speeds []float64
	for range 9 {
		began := time.Now()
		for range 20 {
			sha256.Sum256(block)
		}
		speeds = append(speeds, 20*float64(len(block))/1e6/time.Since(began).Seconds())
	}
	f, err := os.CreateTemp(dir, "calibrate")
	if err != nil {
		return nil, err
	}
	defer os.Remove(filepath.Clean(f.Name()))
	defer f.Close()
	var took []float64
	for range 200 {
		began := time.Now()
		if _, err := f.Write(block[:4096]); err != nil {
			return nil, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began).Seconds()*1000)
	}
	slices.Sort(speeds)
	slices.Sort(took)
	load, _ := os.ReadFile("/proc/loadavg")
	c := &Calibration{At: time.Now().UTC().Truncate(time.Second), SHA256: speeds[4],
		SyncP50: took[100], SyncP99: took[198]}
	if f := strings.Fields(string(load)); len(f) > 3 {
		c.LoadAvg = strings.Join(f[:3], " ")
	}
	if steal2, total2 := stolen(); total2 > total {
		c.StealPct = 100 * (steal2 - steal) / (total2 - total)
	}
	return c, nil
}

// stolen returns what /proc/stat says of the processor time that the host gave to
// others, and of all.
func stolen() (steal, total float64) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		var v float64
		if _, err := fmt.Sscan(f, &v); err != nil || i > 8 {
			continue
		}
		total += v
		if i == 8 {
			steal = v
		}
	}
	return steal, total
}

func (c *Calibration) String() string {
	return fmt.Sprintf("calibration %s: SHA-256 %.0f MB/s on a core, append of 4 KiB and "+
		"fdatasync p50 %.2f ms p99 %.2f ms, load average %s, steal %.1f %%",
		c.At.Format("15:04:05"), c.SHA256, c.SyncP50, c.SyncP99, c.LoadAvg, c.StealPct)
}
