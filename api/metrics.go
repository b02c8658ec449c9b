package api

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/qlogd/qlogd/event"
)

// maxQueueSeries bounds the number of queues with their own series; the others are summed
// up as _other, a name that no queue can have.
const maxQueueSeries = 2000

// metrics has the API's own metrics and, at each scrape, collects the queues' states. Labels
// are routes, codes, types and names of queues and webhooks, never a client's free text.
type metrics struct {
	s         *Server
	handler   http.Handler
	leaseLost prometheus.Counter
	commit    [event.Classes]prometheus.Observer
	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	hooks     *prometheus.CounterVec // by webhook and outcome
	hookNames sync.Map               // webhooks that hooks has

	other rest
}

// queueDescs describe the elements of a queueRow; the first queueCounters are counters.
var queueDescs = [...]*prometheus.Desc{
	queueDesc("enqueued_total", "Messages enqueued since the queue was created."),
	queueDesc("acked_total", "Messages acked since the queue was created."),
	queueDesc("dead_lettered_total", "Messages dead-lettered since the queue was created."),
	queueDesc("discarded_total", "Messages discarded since the queue was created: purged, deleted, "+
		"expired, or dead without a dead-letter queue."),
	queueDesc("leases_expired_total",
		"Leases that expired since the queue was created, as far back as this node's log went."),
	queueDesc("depth", "Messages that are ready, held ones included."),
	queueDesc("in_flight", "Messages that are leased."),
	queueDesc("scheduled", "Messages that wait for their time."),
	queueDesc("dead", "Messages that died in the queue and are not replayed, purged or settled."),
	queueDesc("held", "Messages that are ready and cannot be leased, because of an earlier message of "+
		"their lane or of hold_key."),
	queueDesc("paused", "1 while the queue is paused, else 0."),
	queueDesc("bytes", "Size of the messages in the queue."),
	queueDesc("oldest_age_seconds", "Age of the oldest message."),
}

// Elements of a queueRow: below queueCounters are counters, oldest is not summed up for _other.
const (
	queueCounters = 5
	expired       = queueCounters - 1
	paused        = len(queueDescs) - 3
	oldest        = len(queueDescs) - 1
)

func queueDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("qlogd_queue_"+name, help, []string{"queue"}, nil)
}

var lagDesc = prometheus.NewDesc("qlogd_scheduled_lag_seconds",
	"How late the next scheduled message is: by how much its time has passed.", nil, nil)

var eventsDesc = prometheus.NewDesc(
	"qlogd_events_total", "Events applied by this node since it started.", []string{"type"}, nil)

// queueRow has a queue's values, in the order of queueDescs; what is not known is negative.
type queueRow [len(queueDescs)]int64

// counters are those of a queue.
type counters [queueCounters]int64

// rest sums up the counters of the queues that have no series of their own. The sums never fall, as
// those of the queues of the moment would when queues are deleted, or get series of their own.
type rest struct {
	mu   sync.Mutex
	sums counters
	last map[uint32]counters // of all queues, by their numbers, when they were last summed up
}

// add adds what the queues behind the first own ones have counted since the last call; what is not
// known now counts with the next call. of returns the counters of a queue by its position.
func (r *rest) add(queues []event.QueueView, own int, of func(i int) counters) counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := make(map[uint32]counters, len(queues))
	for i := range queues {
		now, was := of(i), r.last[queues[i].Number]
		for j := range now {
			if now[j] < 0 {
				now[j] = was[j]
			}
			if i >= own {
				r.sums[j] += max(0, now[j]-was[j])
			}
		}
		last[queues[i].Number] = now
	}
	r.last = last
	return r.sums
}

func newMetrics(s *Server) *metrics {
	reg := s.deps.Registry
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Name: "qlogd_" + name, Help: help}
		return promauto.With(reg).NewCounterVec(opts, labels)
	}
	histogram := func(
		name, help string, factor float64, buckets int, labels ...string,
	) *prometheus.HistogramVec {
		return promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
			Name: "qlogd_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, factor, buckets),
		}, labels)
	}
	m := &metrics{
		s: s, handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{
			ErrorHandling: promhttp.ContinueOnError,
		}),
		leaseLost: counter("lease_lost_total",
			"Settles rejected because the lease was no longer current.").WithLabelValues(),
		requests: counter("http_requests_total", "HTTP requests.", "method", "route", "status"),
		hooks: counter("webhook_requests_total",
			"Requests to /hook/{name} answered by this node, by outcome.", "webhook", "outcome"),
		seconds: histogram("http_request_seconds", "Time to answer HTTP requests, waits included.",
			4, 9, "method", "route"),
	}
	commit := histogram("commit_seconds", "Time from a write's proposal to its answer.",
		2, 15, "class")
	for i, class := range classNames { // create all, so that each has a value before its first write
		m.commit[i] = commit.WithLabelValues(class)
	}
	gauge := func(name, help string, value func() float64) {
		opts := prometheus.GaugeOpts{Name: "qlogd_" + name, Help: help}
		promauto.With(reg).NewGaugeFunc(opts, value)
	}
	gauge("lease_waiters", "Lease requests that wait on this node.", func() float64 {
		return float64(s.waiters.parked.Load())
	})
	gauge("http_connections", "Open connections of clients.", func() float64 {
		open, _ := s.opts.Conns.counts()
		return float64(open)
	})
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{
		Name: "qlogd_http_connections_closed_total",
		Help: "Idle connections of clients that were closed to make room for others.",
	}, func() float64 {
		_, closed := s.opts.Conns.counts()
		return float64(closed)
	})
	reg.MustRegister(m)
	return m
}

// answered records an answered request. method and route are the pattern's, so there are as many
// series as routes.
func (m *metrics) answered(method, route string, status int, took time.Duration) {
	if route == "" {
		method, route = "", "other"
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(method, route).Observe(took.Seconds())
}

// hook counts a request to a webhook.
func (m *metrics) hook(name, outcome string) {
	m.hookNames.Store(name, true)
	m.hooks.WithLabelValues(name, outcome).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range append(queueDescs[:], eventsDesc, lagDesc) {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	st := m.s.deps.State
	now, queues := m.s.clock(st), st.Queues()
	lag := 0.0
	if at, ok := st.NextReady(); ok {
		lag = max(0, float64(now-at)/1000)
	}
	ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, lag)
	emit := func(name string, r queueRow) {
		for i, d := range queueDescs {
			kind := prometheus.GaugeValue
			if i < queueCounters {
				kind = prometheus.CounterValue
			}
			if r[i] >= 0 {
				ch <- prometheus.MustNewConstMetric(d, kind, float64(r[i]), name)
			}
		}
	}
	leases, err := m.s.deps.Models.LeasesExpired(queues)
	rows := make([]queueRow, len(queues))
	var other queueRow
	for i := range queues {
		v, r := &queues[i], &rows[i]
		*r = queueRow{
			v.Stats.Enqueued, v.Stats.Acked, v.Stats.DeadLettered, v.Stats.Discarded, -1,
			v.Stats.Ready, v.Stats.InFlight, v.Stats.Scheduled, st.DeadCount(v.Name), v.Stats.Held,
			0, v.Stats.Bytes,
		}
		if err == nil {
			r[expired] = int64(leases[i])
		}
		if v.Paused {
			r[paused] = 1
		}
		if v.Stats.Oldest > 0 {
			r[oldest] = max(0, now-v.Stats.Oldest) / 1000
		}
		if i < maxQueueSeries {
			emit(v.Name, *r)
			continue
		}
		for j := queueCounters; j < oldest; j++ {
			other[j] += r[j]
		}
		other[oldest] = max(other[oldest], r[oldest])
	}
	if len(queues) > maxQueueSeries {
		sums := m.other.add(queues, maxQueueSeries, func(i int) counters {
			return counters(rows[i][:queueCounters])
		})
		copy(other[:], sums[:])
		if err != nil {
			other[expired] = -1
		}
		emit("_other", other)
	}
	for t, n := range st.Counts() {
		if t := event.Type(t); t != event.TypeNone {
			ch <- prometheus.MustNewConstMetric(
				eventsDesc, prometheus.CounterValue, float64(n), t.String())
		}
	}
}

// serve answers GET /metrics.
func (m *metrics) serve(q *request) error {
	q.status = http.StatusOK
	m.s.deliveries.forget(func(name string) bool {
		_, ok := m.s.deps.State.Webhook(name)
		return ok
	})
	m.hookNames.Range(func(name, _ any) bool {
		if _, ok := m.s.deps.State.Webhook(name.(string)); !ok { // deleted
			m.hookNames.Delete(name)
			m.hooks.DeletePartialMatch(prometheus.Labels{"webhook": name.(string)})
		}
		return true
	})
	m.handler.ServeHTTP(q.w, q.Request)
	return nil
}
