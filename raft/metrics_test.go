package raft

import (
	"sync"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
)

type recorder struct {
	mu  sync.Mutex
	got map[string]int
}

func (r *recorder) add(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got[name]++
}
func (r *recorder) Count(name string, _ float64)   { r.add(name) }
func (r *recorder) Gauge(name string, _ float64)   { r.add(name) }
func (r *recorder) Observe(name string, _ float64) { r.add(name) }

func TestMetricsAreForwarded(t *testing.T) {
	rec := &recorder{got: map[string]int{}}
	o := on(memdisk.New())
	o.Metrics = rec
	n := boot(t, o)
	n.put("a")
	n.down()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for _, want := range []string{"entry_seconds", "entry_commands"} {
		assert.NotEqual(t, rec.got[want], 0, "%s is missing in %v", want, rec.got)
	}
}
