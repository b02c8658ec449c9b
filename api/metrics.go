package api

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/qlogd/qlogd/event"
)

// maxQueueSeries bounds the queues with series of their own; the others are summed up
// as _other, a name that no queue can have.
const maxQueueSeries = 2000

// metrics are the API's own and, at each scrape, the queues' states. Labels are
// routes, codes, types and names of queues and webhooks, never a client's free text.
type metrics struct {
	s         *Server
	handler   http.Handler
	leaseLost prometheus.Counter
	commit    *prometheus.HistogramVec
	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	hooks     *prometheus.CounterVec // by webhook and outcome
	hookNames sync.Map               // webhooks that hooks has
}

var (
	descDepth     = queueDesc("depth", "Messages that are ready, held ones included.")
	descInFlight  = queueDesc("in_flight", "Messages that are leased.")
	descScheduled = queueDesc("scheduled", "Messages that wait for their time.")
	descDead      = queueDesc("dead", "Messages that died in the queue and are not replayed, purged or settled.")
	descOldest    = queueDesc("oldest_age_seconds", "Age of the oldest message.")
	descEvents    = prometheus.NewDesc("qlogd_events_total", "Events applied by this node since it started.", []string{"type"}, nil)
)

func queueDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("qlogd_queue_"+name, help, []string{"queue"}, nil)
}

func newMetrics(s *Server) *metrics {
	reg := s.deps.Registry
	if reg == nil {
		reg = prometheus.NewRegistry()
		reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m := &metrics{
		s:         s,
		handler:   promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}),
		leaseLost: prometheus.NewCounter(prometheus.CounterOpts{Name: "qlogd_lease_lost_total", Help: "Settles rejected because the lease was no longer current."}),
		commit: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "qlogd_commit_seconds", Help: "Time from a write's proposal to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}, []string{"class"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "qlogd_http_requests_total", Help: "HTTP requests."}, []string{"method", "route", "status"}),
		hooks:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "qlogd_webhook_requests_total", Help: "Requests to /hook/{name} answered by this node, by outcome."}, []string{"webhook", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "qlogd_http_request_seconds", Help: "Time to answer HTTP requests, waits included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"method", "route"}),
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "qlogd_lease_waiters", Help: "Lease requests that wait on this node."},
		func() float64 { return float64(s.waiters.parked.Load()) })
	reg.MustRegister(m.leaseLost, m.commit, m.requests, m.seconds, m.hooks, waiting, m)
	return m
}

// request records an answered request. method and route are the pattern's, so there
// are as many series as routes.
func (m *metrics) request(method, route string, status int, took time.Duration) {
	if route == "" {
		method, route = "", "other"
	}
	m.seconds.WithLabelValues(method, route).Observe(took.Seconds())
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
}

func (m *metrics) committed(took time.Duration, c event.Class) {
	m.commit.WithLabelValues(classNames[c]).Observe(took.Seconds())
}

// hook counts a request to a webhook.
func (m *metrics) hook(name, outcome string) {
	m.hookNames.Store(name, true)
	m.hooks.WithLabelValues(name, outcome).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDepth, descInFlight, descScheduled, descDead, descOldest, descEvents} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	st := m.s.deps.State
	now := m.s.clock(st)
	queues := st.Queues()
	type row struct{ depth, inFlight, scheduled, dead, oldest int64 }
	emit := func(name string, r row) {
		for _, v := range []struct {
			d *prometheus.Desc
			v int64
		}{{descDepth, r.depth}, {descInFlight, r.inFlight}, {descScheduled, r.scheduled}, {descDead, r.dead}, {descOldest, r.oldest}} {
			ch <- prometheus.MustNewConstMetric(v.d, prometheus.GaugeValue, float64(v.v), name)
		}
	}
	var other row
	for i := range queues {
		v := &queues[i]
		r := row{depth: v.Stats.Ready, inFlight: v.Stats.InFlight, scheduled: v.Stats.Scheduled, dead: st.DeadCount(v.Name)}
		if v.Stats.Oldest > 0 {
			r.oldest = max(0, now-v.Stats.Oldest) / 1000
		}
		if i < maxQueueSeries {
			emit(v.Name, r)
			continue
		}
		other = row{other.depth + r.depth, other.inFlight + r.inFlight, other.scheduled + r.scheduled, other.dead + r.dead, max(other.oldest, r.oldest)}
	}
	if len(queues) > maxQueueSeries {
		emit("_other", other)
	}
	counts := m.s.deps.State.Counts()
	for t := event.TypeNone + 1; t < event.NumTypes; t++ {
		ch <- prometheus.MustNewConstMetric(descEvents, prometheus.CounterValue, float64(counts[t]), t.String())
	}
}

func (m *metrics) serve(q *request) error {
	q.status = http.StatusOK
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
