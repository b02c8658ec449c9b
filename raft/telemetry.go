package raft

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	hashi "github.com/hashicorp/go-metrics"
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
		case error:
			a = v.Error()
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

func (noMetrics) Count(string, float64, ...string)   {}
func (noMetrics) Gauge(string, float64, ...string)   {}
func (noMetrics) Observe(string, float64, ...string) {}

// RouteLibraryMetrics sends what hashicorp/raft reports to m. The library knows one
// global sink, so this is the process's choice and not a replica's.
func RouteLibraryMetrics(m Metrics) error {
	c := hashi.DefaultConfig("")
	c.EnableHostname, c.EnableRuntimeMetrics = false, false
	_, err := hashi.NewGlobal(c, &hashiSink{m: m})
	return err
}

// metricName makes raft.fsm.applyBatch into raft_fsm_apply_batch. It is called a dozen
// times for each entry with some fifty names, so the results are kept.
func metricName(key []string) string {
	joined := strings.Join(key, "_")
	if made, ok := metricNames.Load(joined); ok {
		return made.(string)
	}
	words := strings.ToLower(upperCase.ReplaceAllString(joined, "_$0"))
	name := strings.Trim(separators.ReplaceAllString(words, "_"), "_")
	metricNames.Store(joined, name)
	return name
}

var (
	metricNames sync.Map // of string to string
	upperCase   = regexp.MustCompile(`[A-Z]`)
	separators  = regexp.MustCompile(`[^a-z0-9]+`)
)

// hashiSink passes hashicorp/raft's metrics on. go-metrics calls the methods with labels only.
type hashiSink struct {
	hashi.BlackholeSink
	m Metrics
}

func labelPairs(labels []hashi.Label) (out []string) {
	for _, l := range labels {
		out = append(out, metricName([]string{l.Name}), l.Value)
	}
	return out
}

func (s *hashiSink) SetGaugeWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Gauge(metricName(key), float64(v), labelPairs(l)...)
}
func (s *hashiSink) IncrCounterWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Count(metricName(key), float64(v), labelPairs(l)...)
}
func (s *hashiSink) AddSampleWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Observe(metricName(key), float64(v), labelPairs(l)...)
}

// walMetrics is raft-wal's collector.
type walMetrics struct{ m Metrics }

var _ walmetrics.Collector = walMetrics{}

func (w walMetrics) IncrementCounter(name string, delta uint64) {
	w.m.Count(metricName([]string{"raft_wal", name}), float64(delta))
}

func (w walMetrics) SetGauge(name string, v uint64) {
	w.m.Gauge(metricName([]string{"raft_wal", name}), float64(v))
}
