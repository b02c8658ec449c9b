package push

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the deliveries of this node.
type metrics struct {
	deliveries *prometheus.CounterVec
	flight     *prometheus.GaugeVec
	latency    *prometheus.HistogramVec
	open       *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "qlogd_push_deliveries_total", Help: "Deliveries by this node, by what became of the message."}, []string{"queue", "outcome"}),
		flight:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "qlogd_push_in_flight", Help: "Messages on their way to their target."}, []string{"queue"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "qlogd_push_latency_seconds", Help: "Time from a request to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"queue"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "qlogd_push_breaker_open", Help: "1 while a queue is not leased because its target is down."}, []string{"queue"}),
	}
	if reg != nil {
		reg.MustRegister(m.deliveries, m.flight, m.latency, m.open)
	}
	return m
}

func (m *metrics) delivered(queue, outcome string) {
	m.deliveries.WithLabelValues(queue, outcome).Inc()
}

func (m *metrics) inFlight(queue string, n int) { m.flight.WithLabelValues(queue).Set(float64(n)) }

func (m *metrics) took(queue string, d time.Duration) {
	m.latency.WithLabelValues(queue).Observe(d.Seconds())
}

func (m *metrics) breaker(queue string, open bool) {
	v := 0.0
	if open {
		v = 1
	}
	m.open.WithLabelValues(queue).Set(v)
}

// forget drops a queue's series.
func (m *metrics) forget(queue string) {
	by := prometheus.Labels{"queue": queue}
	m.deliveries.DeletePartialMatch(by)
	m.flight.DeletePartialMatch(by)
	m.latency.DeletePartialMatch(by)
	m.open.DeletePartialMatch(by)
}
