package raft

import (
	"maps"
	"strings"
	"sync/atomic"
	"unicode"

	armon "github.com/armon/go-metrics"
	hashi "github.com/hashicorp/go-metrics"
	walmetrics "github.com/hashicorp/raft-wal/metrics"
)

type noMetrics struct{}

func (noMetrics) Count(string, float64, ...string)   {}
func (noMetrics) Gauge(string, float64, ...string)   {}
func (noMetrics) Observe(string, float64, ...string) {}

// RouteLibraryMetrics sends what hashicorp/raft and raft-boltdb report to m.
// Both know only a global each, so this is the process's choice and not a
// replica's: cmd calls it once.
func RouteLibraryMetrics(m Metrics) error {
	hc := hashi.DefaultConfig("")
	hc.EnableHostname, hc.EnableRuntimeMetrics = false, false
	if _, err := hashi.NewGlobal(hc, hashiSink{m, newNamer()}); err != nil {
		return err
	}
	// raft-boltdb v2.3.0 still reports to the package's former home.
	ac := armon.DefaultConfig("")
	ac.EnableHostname, ac.EnableRuntimeMetrics = false, false
	_, err := armon.NewGlobal(ac, armonSink{m, newNamer()})
	return err
}

// namer remembers what name has made: the libraries tell a dozen things of each
// entry, and some fifty in all.
type namer struct {
	// known is by the key's parts, a dot behind each. The map is never written
	// to: a new name replaces it.
	known atomic.Pointer[map[string]string]
}

// maxNames bounds them: there may be a name with something that varies in it.
const maxNames = 1000

func (n *namer) name(key []string) string {
	var room [96]byte
	b := room[:0]
	for _, k := range key {
		b = append(append(b, k...), '.')
	}
	for {
		old := n.known.Load()
		if made, ok := (*old)[string(b)]; ok {
			return made
		}
		made := name(key)
		if len(*old) >= maxNames {
			return made
		}
		known := maps.Clone(*old)
		known[string(b)] = made
		if n.known.CompareAndSwap(old, &known) {
			return made
		}
	}
}

func newNamer() *namer {
	n := &namer{}
	n.known.Store(&map[string]string{})
	return n
}

// name makes raft.fsm.applyBatch into raft_fsm_apply_batch.
func name(key []string) string {
	var b strings.Builder
	for i, k := range key {
		if i > 0 {
			b.WriteByte('_')
		}
		for j, r := range k {
			switch {
			case unicode.IsUpper(r):
				if j > 0 {
					b.WriteByte('_')
				}
				b.WriteRune(unicode.ToLower(r))
			case unicode.IsLetter(r), unicode.IsDigit(r):
				b.WriteRune(r)
			default:
				b.WriteByte('_')
			}
		}
	}
	return b.String()
}

type hashiSink struct {
	m Metrics
	*namer
}

var _ hashi.MetricSink = hashiSink{}

func (s hashiSink) labels(labels []hashi.Label) []string {
	var out []string
	for _, l := range labels {
		out = append(out, s.name([]string{l.Name}), l.Value)
	}
	return out
}

func (s hashiSink) EmitKey([]string, float32)                 {}
func (s hashiSink) SetGauge(key []string, v float32)          { s.m.Gauge(s.name(key), float64(v)) }
func (s hashiSink) IncrCounter(key []string, v float32)       { s.m.Count(s.name(key), float64(v)) }
func (s hashiSink) AddSample(key []string, v float32)         { s.m.Observe(s.name(key), float64(v)) }
func (s hashiSink) SetPrecisionGauge(key []string, v float64) { s.m.Gauge(s.name(key), v) }
func (s hashiSink) SetGaugeWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Gauge(s.name(key), float64(v), s.labels(l)...)
}
func (s hashiSink) SetPrecisionGaugeWithLabels(key []string, v float64, l []hashi.Label) {
	s.m.Gauge(s.name(key), v, s.labels(l)...)
}
func (s hashiSink) IncrCounterWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Count(s.name(key), float64(v), s.labels(l)...)
}
func (s hashiSink) AddSampleWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Observe(s.name(key), float64(v), s.labels(l)...)
}

// armonSink is hashiSink for the package's former home.
type armonSink struct {
	m Metrics
	*namer
}

var _ armon.MetricSink = armonSink{}

func (s armonSink) labels(labels []armon.Label) []string {
	var out []string
	for _, l := range labels {
		out = append(out, s.name([]string{l.Name}), l.Value)
	}
	return out
}

func (s armonSink) EmitKey([]string, float32)           {}
func (s armonSink) SetGauge(key []string, v float32)    { s.m.Gauge(s.name(key), float64(v)) }
func (s armonSink) IncrCounter(key []string, v float32) { s.m.Count(s.name(key), float64(v)) }
func (s armonSink) AddSample(key []string, v float32)   { s.m.Observe(s.name(key), float64(v)) }
func (s armonSink) SetGaugeWithLabels(key []string, v float32, l []armon.Label) {
	s.m.Gauge(s.name(key), float64(v), s.labels(l)...)
}
func (s armonSink) IncrCounterWithLabels(key []string, v float32, l []armon.Label) {
	s.m.Count(s.name(key), float64(v), s.labels(l)...)
}
func (s armonSink) AddSampleWithLabels(key []string, v float32, l []armon.Label) {
	s.m.Observe(s.name(key), float64(v), s.labels(l)...)
}

// walMetrics is raft-wal's collector: the one library that takes it by argument.
type walMetrics struct {
	m Metrics
	*namer
}

var _ walmetrics.Collector = walMetrics{}

func (w walMetrics) IncrementCounter(name string, delta uint64) {
	w.m.Count(w.name([]string{"raft_wal", name}), float64(delta))
}

func (w walMetrics) SetGauge(name string, v uint64) {
	w.m.Gauge(w.name([]string{"raft_wal", name}), float64(v))
}
