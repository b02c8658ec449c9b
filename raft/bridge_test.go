package raft

import (
	"bytes"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
)

func TestHclogToSlog(t *testing.T) {
	var b bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	h := hlog(logger, "raft").With("peer", "n2")
	h.Warn("failed to contact", "servers", hclog.Fmt("%d of %d", 1, 3), "error",
		errors.New("refused"))
	h.Info("news")
	h.Trace("too much")
	h.Named("sub").Info("a line")
	want := `level=WARN msg="failed to contact" from=raft peer=n2 servers="1 of 3" error=refused
level=DEBUG msg=news from=raft peer=n2
level=DEBUG msg="a line" from=raft peer=n2
`
	assert.Equal(t, b.String(), want)
}

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
	for _, want := range []string{"raft_wal_log_appends", "raft_wal_log_entry_bytes_written",
		"entry_seconds", "entry_commands"} {
		assert.NotEqual(t, rec.got[want], 0, "%s is missing in %v", want, rec.got)
	}
}
