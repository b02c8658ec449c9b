package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// series is what one thing measured in each round.
type series struct {
	name string
	of   []float64
}

func (s *series) add(v float64) { s.of = append(s.of, v) }

func (s *series) String() string {
	if len(s.of) == 0 {
		return s.name + ": nothing measured"
	}
	v := slices.Sorted(slices.Values(s.of))
	return fmt.Sprintf("%-44s median %s   (%s to %s, %d rounds)", s.name, short((v[(len(v)-1)/2]+v[len(v)/2])/2), short(v[0]), short(v[len(v)-1]), len(v))
}

func short(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// table keeps series in the order in which they first came.
type table struct{ all []*series }

func (t *table) add(v float64, format string, args ...any) {
	name := fmt.Sprintf(format, args...)
	for _, s := range t.all {
		if s.name == name {
			s.add(v)
			return
		}
	}
	t.all = append(t.all, &series{name, []float64{v}})
}

func (t *table) print() {
	for _, s := range t.all {
		fmt.Println("  ", s)
	}
}

// took are latencies.
type took struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *took) add(d []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d...)
}

// ms returns a percentile in milliseconds.
func (l *took) ms(p float64) float64 {
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	i := min(int(p/100*float64(len(l.all))), len(l.all)-1)
	return float64(l.all[i].Microseconds()) / 1000
}

// calibrate tells what the machine can do at this moment: one core's SHA-256,
// and the fsync of a small append.
func calibrate(dir string) error {
	block := bytes.Repeat([]byte("qlogd"), 1<<20/5)
	var speeds []float64
	for range 9 {
		began := time.Now()
		for range 20 {
			sha256.Sum256(block)
		}
		speeds = append(speeds, 20/time.Since(began).Seconds())
	}
	f, err := os.Create(filepath.Join(dir, "calibrate"))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	l := &took{}
	for range 200 {
		began := time.Now()
		if _, err := f.Write(block[:4096]); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		l.all = append(l.all, time.Since(began))
	}
	slices.Sort(speeds)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\ncalibration %s: SHA-256 %.0f MB/s (%.0f to %.0f), fsync of 4 KiB p50 %.2f ms p99 %.2f ms, load average %s\n",
		time.Now().UTC().Format("15:04:05"), speeds[4], speeds[0], speeds[8], l.ms(50), l.ms(99),
		strings.Join(strings.Fields(string(load))[:3], " "))
	return nil
}

// printBuckets prints a histogram's buckets as /metrics has them.
func printBuckets(metrics, name string) {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, name+"_bucket") {
			fmt.Print("   ", line)
		}
	}
}
