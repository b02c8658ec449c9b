package raft

import (
	"strings"
	"sync"
	"unicode"

	hashi "github.com/hashicorp/go-metrics"
	walmetrics "github.com/hashicorp/raft-wal/metrics"
)

type noMetrics struct{}

func (noMetrics) Count(string, float64, ...string)   {}
func (noMetrics) Gauge(string, float64, ...string)   {}
func (noMetrics) Observe(string, float64, ...string) {}

// RouteLibraryMetrics sends what hashicorp/raft reports to m. The library knows one
// global sink, so this is the process's choice and not a replica's.
func RouteLibraryMetrics(m Metrics) error {
	c := hashi.DefaultConfig("")
	c.EnableHostname, c.EnableRuntimeMetrics = false, false
	_, err := hashi.NewGlobal(c, hashiSink{m})
	return err
}

// metricName makes raft.fsm.applyBatch into raft_fsm_apply_batch. It is called a dozen
// times for each entry with some fifty names, so the results are kept.
func metricName(key []string) string {
	joined := strings.Join(key, "_")
	if made, ok := metricNames.Load(joined); ok {
		return made.(string)
	}
	var b strings.Builder
	for i, r := range joined {
		switch {
		case unicode.IsUpper(r):
			if i > 0 && joined[i-1] != '_' {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
		case unicode.IsLetter(r), unicode.IsDigit(r):
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	metricNames.Store(joined, b.String())
	return b.String()
}

var metricNames sync.Map // of string to string

// hashiSink passes hashicorp/raft's metrics on.
type hashiSink struct{ m Metrics }

var _ hashi.MetricSink = hashiSink{}

func (hashiSink) labels(labels []hashi.Label) []string {
	var out []string
	for _, l := range labels {
		out = append(out, metricName([]string{l.Name}), l.Value)
	}
	return out
}

func (s hashiSink) EmitKey([]string, float32)                 {}
func (s hashiSink) SetGauge(key []string, v float32)          { s.SetPrecisionGauge(key, float64(v)) }
func (s hashiSink) SetPrecisionGauge(key []string, v float64) { s.m.Gauge(metricName(key), v) }
func (s hashiSink) IncrCounter(key []string, v float32)       { s.IncrCounterWithLabels(key, v, nil) }
func (s hashiSink) AddSample(key []string, v float32)         { s.AddSampleWithLabels(key, v, nil) }
func (s hashiSink) SetGaugeWithLabels(key []string, v float32, l []hashi.Label) {
	s.SetPrecisionGaugeWithLabels(key, float64(v), l)
}
func (s hashiSink) SetPrecisionGaugeWithLabels(key []string, v float64, l []hashi.Label) {
	s.m.Gauge(metricName(key), v, s.labels(l)...)
}
func (s hashiSink) IncrCounterWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Count(metricName(key), float64(v), s.labels(l)...)
}
func (s hashiSink) AddSampleWithLabels(key []string, v float32, l []hashi.Label) {
	s.m.Observe(metricName(key), float64(v), s.labels(l)...)
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
