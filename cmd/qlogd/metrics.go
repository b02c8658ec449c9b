package main

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/raft"
)

// metrics exports raft's metrics to Prometheus, as qlogd_<name>. Raft defines them; each
// is registered when it is first used. Of two kinds under one name the first is exported.
type metrics struct {
	registry   *prometheus.Registry
	counters   sync.Map // by name: *prometheus.CounterVec
	gauges     sync.Map // by name: *prometheus.GaugeVec
	histograms sync.Map // by name: *prometheus.HistogramVec
}

var _ raft.Metrics = (*metrics)(nil)

// Count implements raft.Metrics.
func (m *metrics) Count(name string, n float64, labels ...string) {
	names, values := split(labels)
	v := vector(m, &m.counters, name, func() *prometheus.CounterVec {
		o := prometheus.CounterOpts{Name: "qlogd_" + name, Help: help(name)}
		return prometheus.NewCounterVec(o, names)
	})
	if c, err := v.GetMetricWithLabelValues(values...); err == nil && n >= 0 {
		c.Add(n)
	}
}

// Gauge implements raft.Metrics.
func (m *metrics) Gauge(name string, n float64, labels ...string) {
	names, values := split(labels)
	v := vector(m, &m.gauges, name, func() *prometheus.GaugeVec {
		o := prometheus.GaugeOpts{Name: "qlogd_" + name, Help: help(name)}
		return prometheus.NewGaugeVec(o, names)
	})
	if g, err := v.GetMetricWithLabelValues(values...); err == nil {
		g.Set(n)
	}
}

var secondsBuckets = []float64{
	.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10,
}

// Observe implements raft.Metrics.
func (m *metrics) Observe(name string, n float64, labels ...string) {
	names, values := split(labels)
	v := vector(m, &m.histograms, name, func() *prometheus.HistogramVec {
		o := prometheus.HistogramOpts{Name: "qlogd_" + name, Help: help(name)}
		if o.Buckets = secondsBuckets; !strings.HasSuffix(name, "_seconds") {
			o.Buckets = prometheus.ExponentialBuckets(1, 4, 14)
		}
		return prometheus.NewHistogramVec(o, names)
	})
	if h, err := v.GetMetricWithLabelValues(values...); err == nil {
		h.Observe(n)
	}
}

// vector returns the metric of a name, and registers it when it is new.
func vector[V prometheus.Collector](m *metrics, known *sync.Map, name string, make func() V) V {
	if v, ok := known.Load(name); ok {
		return v.(V)
	}
	v, ok := known.LoadOrStore(name, make())
	if !ok {
		_ = m.registry.Register(v.(V))
	}
	return v.(V)
}

func split(labels []string) (names, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}

func help(name string) string { return strings.ReplaceAll(name, "_", " ") + "." }
