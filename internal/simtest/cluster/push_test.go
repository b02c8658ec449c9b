package cluster_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// sent is a request that a target got.
type sent struct {
	id     string // Webhook-Id
	key    string
	n      int
	at     time.Time
	header http.Header
	gone   <-chan struct{} // closed when nobody waits for the answer
	body   []byte
	status int // that it was answered; 0: none
}

// sink is a target. behave says with which status the request, the seen-th of its
// message from 1, is to be answered; 0: with none, negative: it has been, so.
type sink struct {
	t      *testing.T
	srv    *httptest.Server
	behave func(w http.ResponseWriter, r *sent, seen int) int

	mu   sync.Mutex
	got  []*sent
	seen map[string]int
	busy map[string]string // by key: the message that is being worked on
}

func newSink(t *testing.T, behave func(w http.ResponseWriter, r *sent, seen int) int) *sink {
	t.Helper()
	s := &sink{t: t, behave: behave, seen: map[string]int{}, busy: map[string]string{}}
	s.srv = httptest.NewServer(s)
	t.Cleanup(func() {
		s.srv.CloseClientConnections()
		s.srv.Close()
	})
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d := &sent{id: r.Header.Get("Webhook-Id"), at: time.Now(), header: r.Header, body: body,
		gone: r.Context().Done()}
	var p struct {
		Key string `json:"key"`
		N   int    `json:"n"`
	}
	_ = json.Unmarshal(body, &p)
	d.key, d.n = p.Key, p.N
	s.mu.Lock()
	s.seen[d.id]++
	seen := s.seen[d.id]
	if p.Key != "" {
		// The same one may be: a request is given up before the target hears of it.
		if before := s.busy[p.Key]; before != "" && before != d.id {
			s.t.Errorf("two messages of key %s are on their way", p.Key)
		}
		s.busy[p.Key] = d.id
	}
	s.got = append(s.got, d)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if s.busy[p.Key] == d.id {
			delete(s.busy, p.Key)
		}
		s.mu.Unlock()
	}()
	status := http.StatusOK
	if s.behave != nil {
		status = s.behave(w, d, seen)
	}
	s.mu.Lock()
	d.status = max(status, -status)
	s.mu.Unlock()
	if status > 0 {
		w.WriteHeader(status)
	}
}

// all returns a copy of what it got.
func (s *sink) all() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]sent, len(s.got))
	for i, d := range s.got {
		out[i] = *d
	}
	return out
}

// done returns how many messages were answered 2xx.
func (s *sink) done() int {
	ids := map[string]bool{}
	for _, d := range s.all() {
		if d.status >= 200 && d.status < 300 {
			ids[d.id] = true
		}
	}
	return len(ids)
}

// reset ends the connection without an answer.
func reset(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// batch is message i of each key.
func batch(keys, i int) (out []wire.NewMessage) {
	for k := range keys {
		m := client.JSON(map[string]any{"key": fmt.Sprint("k", k), "n": i})
		m.Key = fmt.Sprint("k", k)
		m.IdempotencyKey = fmt.Sprint(k, "-", i)
		out = append(out, m)
	}
	return out
}

// keyed produces the messages from to to-1 of each key, in turns, and returns their ids in order.
func keyed(t *testing.T, cl *client.Client, queue string, keys, from, to int) (ids []string) {
	t.Helper()
	for i := from; i < to; i++ {
		got, err := cl.Produce(t.Context(), queue, batch(keys, i)...)
		require.NoError(t, err)
		for _, p := range got {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// delivered checks what a target of a per_key queue got: all messages, each with
// one id that is the message's, in order by key.
func delivered(t *testing.T, s *sink, ids []string) {
	t.Helper()
	want := map[string]bool{}
	for _, id := range ids {
		want[id] = true
	}
	last := map[string]int{}
	for _, d := range s.all() {
		if !want[d.id] || d.header.Get("Idempotency-Key") != d.id {
			t.Fatalf("got %q with Idempotency-Key %q: no message's id", d.id,
				d.header.Get("Idempotency-Key"))
		}
		if n, ok := last[d.key]; ok && (d.n < n || d.n > n+1) || !ok && d.n != 0 {
			t.Errorf("key %s: message %d after %d", d.key, d.n, n)
		}
		last[d.key] = d.n
	}
	assert.Equal(t, s.done(), len(ids), "messages were delivered")
}

// acked waits until all of a queue's messages are.
func acked(t *testing.T, ctx context.Context, cl *client.Client, queue string, want int) {
	t.Helper()
	within(t, ctx, "all are acked", func() bool {
		q, err := cl.Queue(ctx, queue)
		return err == nil && q.Stats.AckedTotal == int64(want) && q.Stats.InFlight == 0
	})
}

const pushSecret = "plainsecret-0123!"

func TestPush(t *testing.T) {
	t.Parallel()
	n := cluster.Start(t, cluster.Options{Flags: []string{"--push-allow-private"},
		Env: []string{"PUSH_SECRET=" + pushSecret}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	pushFails(t, ctx, n)
	pushTimesOut(t, ctx, n)
	pushTraced(t, n)
	pushTerm(t, ctx, n)
	assert.False(t, strings.Contains(n.Log(), pushSecret), "the log has the secret")
}

// pushFails: a target that fails in each way gets all messages, in order by key,
// each try with the same id and signed; what it answers is kept.
func pushFails(t *testing.T, ctx context.Context, n *cluster.Node) {
	s := newSink(t, func(w http.ResponseWriter, r *sent, seen int) int {
		if r.n%3 == 0 && (r.key == "k0" || seen == 1) {
			switch seen {
			case 1:
				return http.StatusInternalServerError
			case 2:
				return http.StatusServiceUnavailable
			case 3:
				reset(w)
				return 0
			case 4:
				w.Header().Set("Location", "http://169.254.169.254/latest/meta-data/")
				return http.StatusTemporaryRedirect
			case 5:
				w.Header().Set("Retry-After", "1")
				return http.StatusTooManyRequests
			case 6:
				return http.StatusUnprocessableEntity
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{ "took": true }`)
		return -http.StatusOK
	})
	// net/http sends a request again that is reset on a connection which had another before.
	s.srv.Config.SetKeepAlivesEnabled(false)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"per_key",
		"delivery":{"max_attempts":0,"initial_backoff_ms":10,"max_backoff_ms":20},
		"push":{"url":%q,"max_in_flight":8,"secret_env":"PUSH_SECRET"}}`, s.srv.URL))
	ids := keyed(t, cl, "q", 4, 0, 6)
	acked(t, ctx, cl, "q", len(ids))
	delivered(t, s, ids)
	var limited time.Time
	for _, d := range s.all() {
		mac := hmac.New(sha256.New, []byte(pushSecret))
		fmt.Fprintf(mac, "%s.%s.%s", d.id, d.header.Get("Webhook-Timestamp"), d.body)
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		assert.Equal(t, d.header.Get("Webhook-Signature"), want, "the signature")
		if d.id != ids[0] {
			continue
		}
		// The retry after a 429 waited as long as the target said.
		if !limited.IsZero() && d.at.Sub(limited) < 990*time.Millisecond {
			t.Errorf("came back %s after 429 with Retry-After 1", d.at.Sub(limited))
		}
		if limited = (time.Time{}); d.status == http.StatusTooManyRequests {
			limited = d.at
		}
	}
	// The log says what went wrong.
	events, err := cl.History(ctx, ids[0])
	require.NoError(t, err)
	var errs []string
	for _, e := range events {
		if e.Type == "retried" {
			errs = append(errs, e.Error)
		}
	}
	for i, want := range []string{"status 500", "status 503", "connection reset", "status 307",
		"status 429", "status 422"} {
		if i >= len(errs) || !strings.Contains(errs[i], want) {
			t.Errorf("attempt %d failed with %q, want %q", i+1, errs, want)
			break
		}
	}
	// A message that is produced again is answered with what came of the first.
	again, err := cl.Produce(ctx, "q", batch(4, 0)...)
	assert.True(t, err == nil && string(again[1].Result) == `{"status":200,"answer":{"took":true}}`,
		"produced again: %+v %v", again, err)
}

// pushTimesOut: a target that does not answer in time is asked again. (Only here is there too
// little time, so that nothing else depends on how soon the target answers.)
func pushTimesOut(t *testing.T, ctx context.Context, n *cluster.Node) {
	s := newSink(t, func(_ http.ResponseWriter, r *sent, seen int) int {
		if seen == 1 {
			<-r.gone
			return 0
		}
		return http.StatusOK
	})
	cl := n.Client()
	queue(t, cl, "slow", fmt.Sprintf(`{"delivery":{"max_attempts":0,"initial_backoff_ms":10},
		"push":{"url":%q,"timeout_ms":300}}`, s.srv.URL))
	ids := keyed(t, cl, "slow", 1, 0, 1)
	acked(t, ctx, cl, "slow", 1)
	events, err := cl.History(ctx, ids[0])
	require.NoError(t, err)
	retried := slices.IndexFunc(events, func(e wire.Event) bool { return e.Type == "retried" })
	require.True(t, retried >= 0 && strings.Contains(events[retried].Error, "no answer in time"),
		"its history is %+v", events)
}

// pushTraced: the trace of a pushed message goes to the target and on to its answer.
func pushTraced(t *testing.T, n *cluster.Node) {
	got := make(chan string, 1)
	s := newSink(t, func(w http.ResponseWriter, r *sent, _ int) int {
		got <- r.header.Get("Traceparent")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
		return -http.StatusOK
	})
	queue(t, n.Client(), "answers", "")
	queue(t, n.Client(), "traced", `{"push":{"url":"`+s.srv.URL+`","answer_to":"answers"}}`)
	traced(t, n, caller(1), "/v1/queues/traced/messages", `{"payload":1}`, nil)
	assert.Equal(t, <-got, caller(1))
	var answers wire.LeaseResponse
	traced(t, n, "", "/v1/queues/answers/lease", `{"wait_ms":60000}`, &answers)
	require.Equal(t, len(answers.Messages), 1)
	assert.Equal(t, answers.Messages[0].Headers["traceparent"], caller(1))
}

// pushTerm: a node that is asked to end returns what it has not sent, waits
// for what is on its way, and the next start delivers the rest.
func pushTerm(t *testing.T, ctx context.Context, n *cluster.Node) {
	draining := make(chan struct{})
	s := newSink(t, func(_ http.ResponseWriter, r *sent, _ int) int {
		select {
		case <-draining:
		case <-r.gone: // a failure must not keep the server from closing
		}
		return http.StatusOK
	})
	cl := n.Client()
	queue(t, cl, "term", fmt.Sprintf(`{"ordering":"per_key","delivery":{"lease_ms":600000},
		"push":{"url":%q,"max_in_flight":4}}`, s.srv.URL))
	ids := keyed(t, cl, "term", 8, 0, 3)
	within(t, ctx, "four are on their way", func() bool { return len(s.all()) == 4 })
	ended := make(chan error, 1)
	go func() { ended <- n.Quit() }()
	within(t, ctx, "it drains",
		func() bool { return strings.Contains(n.Log(), `"msg":"draining"`) })
	close(draining)
	if err := <-ended; err != nil || s.done() < 4 {
		t.Errorf("it ended with %v while %d of 4 were answered", err, s.done())
	}
	n.Restart()
	// A lease that was not given back would hold its key for ten minutes.
	acked(t, ctx, cl, "term", len(ids))
	delivered(t, s, ids)
	assert.Equal(t, len(s.all()), len(ids), "requests for messages")
}

// pushOverFailovers: the leader is killed in the middle, again and again. Nothing is
// lost, order by key holds, and each delivery of a message has the same id.
func pushOverFailovers(t *testing.T, c *cluster.Cluster) {
	s := newSink(t, nil)
	cl := c.Client()
	queue(t, cl, "pushed", fmt.Sprintf(`{"ordering":"per_key",
		"delivery":{"lease_ms":3000,"max_attempts":0,"initial_backoff_ms":10},
		"push":{"url":%q,"max_in_flight":6}}`, s.srv.URL))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var ids []string
	for i := range 2 {
		more := make(chan []string, 1)
		go func() { more <- keyed(t, cl, "pushed", 6, 15*i, 15*(i+1)) }()
		before := s.done()
		within(t, ctx, "it goes on", func() bool { return s.done() > before+30 })
		leader := c.WaitLeader()
		leader.Kill9()
		leader.Restart()
		ids = append(ids, <-more...)
	}
	acked(t, ctx, cl, "pushed", len(ids))
	delivered(t, s, ids)
	t.Logf("%d requests for %d messages", len(s.all()), len(ids))
}
