package raft

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	walmetrics "github.com/hashicorp/raft-wal/metrics"
)

// hlog returns a logger for a library, on slog.
func hlog(logger *slog.Logger, name string) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off})
	l.RegisterSink(&hlogSink{logger: logger.With("from", name)})
	return l
}

type hlogSink struct {
	logger   *slog.Logger
	repeated sync.Map // message to *throttle
}

// hlogLevels rank a library's levels one below ours: its news (a snapshot began) is
// detail to an operator of qlogd. Warnings stay.
var hlogLevels = map[hclog.Level]slog.Level{
	hclog.Error: slog.LevelError, hclog.Warn: slog.LevelWarn, hclog.Info: slog.LevelDebug,
	hclog.Debug: slog.LevelDebug - 4, hclog.Trace: slog.LevelDebug - 4,
}

// plain renders hclog's own formats.
func plain(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case hclog.Format:
			if f, ok := v[0].(string); ok {
				a = fmt.Sprintf(f, v[1:]...)
			}
		case fmt.Stringer:
			a = v.String()
		}
		out[i] = a
	}
	return out
}

// routine are the errors that hashicorp/raft logs at each attempt whenever a node stops,
// starts or is away. It logs an unreachable node once more, as "failed to contact".
var routine = map[string]bool{
	"failed to heartbeat to": true, "failed to appendEntries to": true,
	"failed to send snapshot to": true, "failed to get previous log": true,
	"appendEntries rejected, sending older logs": true, "failed to make requestVote RPC": true,
	"failed to decode incoming command": true, "failed to flush response": true,
}

// electionStarts comes with the last leader's address and id.
const electionStarts = "heartbeat timeout reached, starting election"

// Accept implements hclog.SinkAdapter.
func (h *hlogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	l := hlogLevels[level]
	if routine[msg] {
		l = slog.LevelDebug
	}
	if l >= slog.LevelWarn { // the same may be logged at each attempt
		t, _ := h.repeated.LoadOrStore(msg, &throttle{})
		if !t.(*throttle).due(time.Now()) {
			l = slog.LevelDebug
		}
	}
	if msg == electionStarts && len(args) == 4 && fmt.Sprint(args[3]) == "" && l == slog.LevelWarn {
		l = slog.LevelInfo // no leader was known before: a node has started
	}
	if h.logger.Enabled(context.Background(), l) { // before plain renders anything
		h.logger.Log(context.Background(), l, msg, plain(args)...)
	}
}

// throttle reports whether at least a minute has passed since due last returned true.
type throttle struct{ next atomic.Int64 } // Unix ns

func (t *throttle) due(now time.Time) bool {
	next := t.next.Load()
	return now.UnixNano() >= next && t.next.CompareAndSwap(next, now.Add(time.Minute).UnixNano())
}

type noMetrics struct{}

func (noMetrics) Count(string, float64)   {}
func (noMetrics) Gauge(string, float64)   {}
func (noMetrics) Observe(string, float64) {}

// walMetrics is raft-wal's collector.
type walMetrics struct{ m Metrics }

var _ walmetrics.Collector = walMetrics{}

func (w walMetrics) IncrementCounter(name string, delta uint64) {
	w.m.Count("raft_wal_"+name, float64(delta))
}

func (w walMetrics) SetGauge(name string, v uint64) {
	w.m.Gauge("raft_wal_"+name, float64(v))
}
