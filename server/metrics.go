package server

import (
	"math"
	"regexp"
	"runtime"
	"strings"
	"sync"

	hashi "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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
			o.Name = strings.TrimSuffix(o.Name, "_total") + "_total"
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
	help, ok := helps[own]
	if !ok {
		help = "Reported by hashicorp/raft or raft-wal as " + name + "; times are in milliseconds."
	}
	v, loaded := known.LoadOrStore(name,
		make(prometheus.Opts{Name: "qlogd_" + own, Help: help}, names))
	if !loaded {
		_ = m.registry.Register(v.(V))
	}
	return v.(V)
}

// helps describe what package raft measures.
var helps = map[string]string{
	"entry_seconds":           "Time to commit and apply an entry on the leader.",
	"entry_commands":          "Commands in an entry.",
	"forward_seconds":         "Time to forward a group of writes to the leader, answers included.",
	"forwarded_groups":        "Groups of writes forwarded to the leader.",
	"forwarded_commands":      "Writes forwarded to the leader.",
	"no_leader":               "Writes refused because no leader was found in time.",
	"checkpoint_seconds":      "Time to write a checkpoint.",
	"checkpoint_hold_seconds": "Time for which a checkpoint delays entries.",
	"witness_failures":        "Failures to write the high-water mark.",
	"raft_diverged":           "Nodes that differ from others without a majority to decide.",
	"raft_mark_index":         "Index of the newest comparison of the nodes' logs.",
	"raft_unconfirmed":        "Voters that may know of newer entries than this node, which lost some.",
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

// exportNode exports the state of this node.
func (e *engine) exportNode(r *prometheus.Registry) {
	promauto.With(r).NewGauge(prometheus.GaugeOpts{
		Name: "qlogd_build_info", Help: "1, with the program's version, commit and Go version.",
		ConstLabels: prometheus.Labels{"version": e.c.Version, "commit": e.c.Commit,
			"go": runtime.Version()},
	}).Set(1)
	flag := func(set bool) float64 {
		if set {
			return 1
		}
		return 0
	}
	for _, g := range []struct {
		name, help string
		value      func() float64
	}{
		{"leader", "1 on the leader, else 0.", func() float64 { return flag(e.replica.Leader()) }},
		{"ready", "1 if the node can serve, else 0.", func() float64 {
			ok, _ := e.replica.Ready()
			return flag(ok)
		}},
		{"applied_index", "Index of the newest entry that this node has applied.",
			func() float64 { return float64(e.machine.Index()) }},
		{"lag_seconds", "By how much the state of this node may be behind the cluster's; NaN: not known.",
			func() float64 {
				age, ok := e.replica.Age()
				if !ok {
					return math.NaN()
				}
				return max(age, 0).Seconds()
			}},
		{"disk_free_bytes", "Free space of the data directory's disk; NaN: not known.",
			func() float64 {
				free, err := freeBytes(e.c.DataDir)
				if err != nil {
					return math.NaN()
				}
				return float64(free)
			}},
		{"log_size_bytes", "Size of the event log's segments.", func() float64 {
			total := int64(0)
			for _, s := range e.logSegments().Segments {
				total += s.Bytes
			}
			return float64(total)
		}},
	} {
		promauto.With(r).NewGaugeFunc(
			prometheus.GaugeOpts{Name: "qlogd_" + g.name, Help: g.help}, g.value)
	}
}
