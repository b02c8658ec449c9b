package main

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/raft"
)

// metrics hands what raft counts to Prometheus, as qlogd_<name>. Which metrics
// there are is raft's to say; each is registered when it is first seen. There are
// dozens of samples for each entry, so what is known is found without a lock.
type metrics struct {
	registry *prometheus.Registry

	counter   handles[prometheus.Counter]
	gauge     handles[prometheus.Gauge]
	histogram handles[prometheus.Observer]

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
	c, ok := m.counter.get(name, labels)
	if !ok {
		names, values := split(labels)
		v := vector(m, m.counters, name, func() *prometheus.CounterVec {
			return prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricName(name), Help: help(name)}, names)
		})
		var err error
		if c, err = v.GetMetricWithLabelValues(values...); err != nil {
			return
		}
		m.counter.put(name, labels, c)
	}
	if n >= 0 {
		c.Add(n)
	}
}

// Gauge implements raft.Metrics.
func (m *metrics) Gauge(name string, v float64, labels ...string) {
	g, ok := m.gauge.get(name, labels)
	if !ok {
		names, values := split(labels)
		vec := vector(m, m.gauges, name, func() *prometheus.GaugeVec {
			return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricName(name), Help: help(name)}, names)
		})
		var err error
		if g, err = vec.GetMetricWithLabelValues(values...); err != nil {
			return
		}
		m.gauge.put(name, labels, g)
	}
	g.Set(v)
}

// Observe implements raft.Metrics.
func (m *metrics) Observe(name string, v float64, labels ...string) {
	h, ok := m.histogram.get(name, labels)
	if !ok {
		names, values := split(labels)
		vec := vector(m, m.histograms, name, func() *prometheus.HistogramVec {
			o := prometheus.HistogramOpts{Name: metricName(name), Help: help(name)}
			if strings.HasSuffix(name, "_seconds") {
				o.Buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
			} else {
				o.Buckets = prometheus.ExponentialBuckets(1, 4, 14)
			}
			return prometheus.NewHistogramVec(o, names)
		})
		var err error
		if h, err = vec.GetMetricWithLabelValues(values...); err != nil {
			return
		}
		m.histogram.put(name, labels, h)
	}
	h.Observe(v)
}

// series names one time series, of one label at most.
type series struct{ name, label, value string }

func seriesOf(name string, labels []string) (s series, ok bool) {
	switch len(labels) {
	case 0:
		return series{name: name}, true
	case 2:
		return series{name, labels[0], labels[1]}, true
	}
	return s, false
}

// handles are the series of a kind that have been seen. The map is never written
// to: put replaces it.
type handles[T any] struct{ known atomic.Pointer[map[series]T] }

func (h *handles[T]) get(name string, labels []string) (t T, ok bool) {
	s, ok := seriesOf(name, labels)
	if known := h.known.Load(); ok && known != nil {
		t, ok = (*known)[s]
		return t, ok
	}
	return t, false
}

func (h *handles[T]) put(name string, labels []string, t T) {
	s, ok := seriesOf(name, labels)
	if !ok {
		return
	}
	for {
		old := h.known.Load()
		known := map[series]T{}
		if old != nil {
			known = maps.Clone(*old)
		}
		known[s] = t
		if h.known.CompareAndSwap(old, &known) {
			return
		}
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
