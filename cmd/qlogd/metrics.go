package main

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/raft"
)

// metrics hands what raft counts to Prometheus, as qlogd_<name>. Which metrics
// there are is raft's to say; each is registered when it is first seen.
type metrics struct {
	registry *prometheus.Registry

	mu         sync.Mutex
	counters   map[string]*prometheus.CounterVec
	gauges     map[string]*prometheus.GaugeVec
	histograms map[string]*prometheus.HistogramVec
}

var _ raft.Metrics = (*metrics)(nil)

func newMetrics(registry *prometheus.Registry) *metrics {
	return &metrics{
		registry: registry, counters: map[string]*prometheus.CounterVec{},
		gauges: map[string]*prometheus.GaugeVec{}, histograms: map[string]*prometheus.HistogramVec{},
	}
}

// Count implements raft.Metrics.
func (m *metrics) Count(name string, n float64, labels ...string) {
	names, values := split(labels)
	v := vector(m, m.counters, name, func() *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricName(name), Help: help(name)}, names)
	})
	if c, err := v.GetMetricWithLabelValues(values...); err == nil && n >= 0 {
		c.Add(n)
	}
}

// Gauge implements raft.Metrics.
func (m *metrics) Gauge(name string, v float64, labels ...string) {
	names, values := split(labels)
	g := vector(m, m.gauges, name, func() *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricName(name), Help: help(name)}, names)
	})
	if g, err := g.GetMetricWithLabelValues(values...); err == nil {
		g.Set(v)
	}
}

// Observe implements raft.Metrics.
func (m *metrics) Observe(name string, v float64, labels ...string) {
	names, values := split(labels)
	h := vector(m, m.histograms, name, func() *prometheus.HistogramVec {
		o := prometheus.HistogramOpts{Name: metricName(name), Help: help(name)}
		if strings.HasSuffix(name, "_seconds") {
			o.Buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
		} else {
			o.Buckets = prometheus.ExponentialBuckets(1, 4, 14)
		}
		return prometheus.NewHistogramVec(o, names)
	})
	if h, err := h.GetMetricWithLabelValues(values...); err == nil {
		h.Observe(v)
	}
}

// vector returns the metric of a name, registering it when it is new. Of two
// kinds under one name the first stays the one that is shown.
func vector[V prometheus.Collector](m *metrics, known map[string]V, name string, make func() V) V {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := known[name]
	if !ok {
		v = make()
		_ = m.registry.Register(v)
		known[name] = v
	}
	return v
}

func split(labels []string) (names, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}

func metricName(name string) string { return "qlogd_" + name }

func help(name string) string { return strings.ReplaceAll(name, "_", " ") + "." }
