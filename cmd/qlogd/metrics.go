package main

import (
	"regexp"
	"strings"
	"sync"

	hashi "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/raft"
)

// metrics exports to Prometheus, as qlogd_<name>, what package raft measures and what
// hashicorp/raft reports. Each metric is registered when it is first used. Of two kinds under one
// name the first is exported.
type metrics struct {
	hashi.BlackholeSink // go-metrics calls the methods with labels only

	registry   *prometheus.Registry
	counters   sync.Map // by name: *prometheus.CounterVec
	gauges     sync.Map // by name: *prometheus.GaugeVec
	histograms sync.Map // by name: *prometheus.HistogramVec
}

var (
	_ raft.Metrics     = (*metrics)(nil)
	_ hashi.MetricSink = (*metrics)(nil)
)

// followLibraries has the libraries report to m. They know one global sink.
func (m *metrics) followLibraries() error {
	c := hashi.DefaultConfig("")
	c.EnableHostname, c.EnableRuntimeMetrics = false, false
	_, err := hashi.NewGlobal(c, m)
	return err
}

// Count, Gauge and Observe implement raft.Metrics.
func (m *metrics) Count(name string, n float64)   { m.count(name, n, nil) }
func (m *metrics) Gauge(name string, v float64)   { m.gauge(name, v, nil) }
func (m *metrics) Observe(name string, v float64) { m.observe(name, v, nil) }

// IncrCounterWithLabels implements hashi.MetricSink.
func (m *metrics) IncrCounterWithLabels(key []string, n float32, labels []hashi.Label) {
	m.count(strings.Join(key, "_"), float64(n), labels)
}

// SetGaugeWithLabels implements hashi.MetricSink.
func (m *metrics) SetGaugeWithLabels(key []string, v float32, labels []hashi.Label) {
	m.gauge(strings.Join(key, "_"), float64(v), labels)
}

// AddSampleWithLabels implements hashi.MetricSink.
func (m *metrics) AddSampleWithLabels(key []string, v float32, labels []hashi.Label) {
	m.observe(strings.Join(key, "_"), float64(v), labels)
}

func (m *metrics) count(name string, n float64, labels []hashi.Label) {
	v := vector(m, &m.counters, name, labels,
		func(o prometheus.Opts, labels []string) *prometheus.CounterVec {
			return prometheus.NewCounterVec(prometheus.CounterOpts(o), labels)
		})
	if c, err := v.GetMetricWithLabelValues(values(labels)...); err == nil && n >= 0 {
		c.Add(n)
	}
}

func (m *metrics) gauge(name string, n float64, labels []hashi.Label) {
	v := vector(m, &m.gauges, name, labels,
		func(o prometheus.Opts, labels []string) *prometheus.GaugeVec {
			return prometheus.NewGaugeVec(prometheus.GaugeOpts(o), labels)
		})
	if g, err := v.GetMetricWithLabelValues(values(labels)...); err == nil {
		g.Set(n)
	}
}

var secondsBuckets = []float64{
	.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10,
}

func (m *metrics) observe(name string, n float64, labels []hashi.Label) {
	v := vector(m, &m.histograms, name, labels,
		func(o prometheus.Opts, labels []string) *prometheus.HistogramVec {
			ho := prometheus.HistogramOpts{Name: o.Name, Help: o.Help, Buckets: secondsBuckets}
			if !strings.HasSuffix(o.Name, "_seconds") {
				ho.Buckets = prometheus.ExponentialBuckets(1, 4, 14)
			}
			return prometheus.NewHistogramVec(ho, labels)
		})
	if h, err := v.GetMetricWithLabelValues(values(labels)...); err == nil {
		h.Observe(n)
	}
}

// vector returns the metric of a name, and registers it when it is new.
func vector[V prometheus.Collector](m *metrics, known *sync.Map, name string, labels []hashi.Label,
	make func(o prometheus.Opts, labels []string) V) V {
	if v, ok := known.Load(name); ok {
		return v.(V)
	}
	var names []string
	for _, l := range labels {
		names = append(names, snakeCase(l.Name))
	}
	own := snakeCase(name)
	help := strings.ReplaceAll(own, "_", " ") + "."
	v, ok := known.LoadOrStore(name, make(prometheus.Opts{Name: "qlogd_" + own, Help: help}, names))
	if !ok {
		_ = m.registry.Register(v.(V))
	}
	return v.(V)
}

func values(labels []hashi.Label) (out []string) {
	for _, l := range labels {
		out = append(out, l.Value)
	}
	return out
}

var (
	upperCase  = regexp.MustCompile(`[A-Z]`)
	separators = regexp.MustCompile(`[^a-z0-9]+`)
)

// snakeCase makes raft_fsm_applyBatch into raft_fsm_apply_batch.
func snakeCase(name string) string {
	words := strings.ToLower(upperCase.ReplaceAllString(name, "_$0"))
	return strings.Trim(separators.ReplaceAllString(words, "_"), "_")
}
