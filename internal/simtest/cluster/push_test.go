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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// sent is a request that a target got.
type sent struct {
	id      string // Webhook-Id
	attempt int
	key     string
	n       int
	at      time.Time
	header  http.Header
	gone    <-chan struct{} // closed when nobody waits for the answer
	body    []byte
	status  int // that it was answered; 0: none
}

// sink is a target. behave says with which status the request, the seen-th of its
// message from 1, is to be answered; 0: with none, negative: it has been, so.
type sink struct {
	t      *testing.T
	srv    *httptest.Server
	behave func(w http.ResponseWriter, r *sent, seen int) int

	mu       sync.Mutex
	got      []*sent
	seen     map[string]int
	busy     map[string]string // by key: the message that is being worked on
	now, top int               // requests at a time
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
	d := &sent{id: r.Header.Get("Webhook-Id"), at: time.Now(), header: r.Header, body: body, gone: r.Context().Done()}
	d.attempt, _ = strconv.Atoi(r.Header.Get("Qlogd-Attempt"))
	var p struct {
		Key string `json:"key"`
		N   int    `json:"n"`
	}
	_ = json.Unmarshal(body, &p)
	d.key, d.n = p.Key, p.N
	s.mu.Lock()
	s.seen[d.id]++
	seen := s.seen[d.id]
	s.now++
	s.top = max(s.top, s.now)
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
		s.now--
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

// pushNode starts a node that may push to this machine.
func pushNode(t *testing.T, env ...string) *cluster.Node {
	t.Helper()
	return cluster.Start(t, cluster.Options{Flags: []string{"--push-allow-private"}, Env: env})
}

// within waits until look is content.
func within(t *testing.T, d time.Duration, what string, look func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !look(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

// keyed produces n messages for each key, in turns, and returns their ids in order.
func keyed(t *testing.T, cl *client.Client, queue string, keys, n int) (ids []string) {
	t.Helper()
	for i := range n {
		var batch []wire.NewMessage
		for k := range keys {
			m := client.JSON(map[string]any{"key": fmt.Sprint("k", k), "n": i})
			m.Key = fmt.Sprint("k", k)
			batch = append(batch, m)
		}
		got, err := cl.ProduceAll(t.Context(), queue, batch, client.WithIdempotencyKey(fmt.Sprint(queue, "-", i)))
		if err != nil {
			t.Fatal(err)
		}
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
			t.Fatalf("got %q with Idempotency-Key %q: no message's id", d.id, d.header.Get("Idempotency-Key"))
		}
		if n, ok := last[d.key]; ok && (d.n < n || d.n > n+1) || !ok && d.n != 0 {
			t.Errorf("key %s: message %d after %d", d.key, d.n, n)
		}
		last[d.key] = d.n
	}
	if n := s.done(); n != len(ids) {
		t.Errorf("%d of %d messages were delivered", n, len(ids))
	}
}

// TestPush: a target that fails in each way gets all messages, in order by key,
// each try with the same id.
func TestPush(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(w http.ResponseWriter, r *sent, seen int) int {
		if r.n%3 != 0 || seen > 6 {
			return http.StatusOK
		}
		switch seen {
		case 1:
			return http.StatusInternalServerError
		case 2:
			<-r.gone
			return 0
		case 3:
			reset(w)
			return 0
		case 4:
			w.Header().Set("Location", "http://169.254.169.254/latest/meta-data/")
			return http.StatusTemporaryRedirect
		case 5:
			w.Header().Set("Retry-After", "1")
			return http.StatusTooManyRequests
		}
		return http.StatusUnprocessableEntity
	})
	n := pushNode(t)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"per_key","delivery":{"max_attempts":0,"initial_backoff_ms":10,"max_backoff_ms":20},"push":{"url":%q,"timeout_ms":300,"max_in_flight":8}}`, s.srv.URL))
	ids := keyed(t, cl, "q", 4, 6)
	within(t, 60*time.Second, "all are delivered", func() bool { return s.done() == len(ids) })
	delivered(t, s, ids)
	within(t, 5*time.Second, "all are acked", func() bool {
		q, err := cl.Queue(t.Context(), "q")
		return err == nil && q.Stats.AckedTotal == int64(len(ids)) && q.Stats.InFlight == 0
	})
	// The retry after a 429 waited as long as the target said.
	var limited time.Time
	for _, d := range s.all() {
		if d.id != ids[0] {
			continue
		}
		if !limited.IsZero() && d.at.Sub(limited) < 990*time.Millisecond {
			t.Errorf("came back %s after 429 with Retry-After 1", d.at.Sub(limited))
		}
		if limited = (time.Time{}); d.status == http.StatusTooManyRequests {
			limited = d.at
		}
	}
	// The log says what went wrong.
	events, err := cl.History(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	var errs []string
	for _, e := range events {
		if e.Type == "retried" {
			errs = append(errs, e.Error)
		}
	}
	for i, want := range []string{"status 500", "no answer in time", "connection reset", "status 307", "status 429", "status 422"} {
		if i >= len(errs) || !strings.Contains(errs[i], want) {
			t.Errorf("attempt %d failed with %q, want %q", i+1, errs, want)
			break
		}
	}
}

// TestPushSigns: requests are signed with each secret as Standard Webhooks says,
// mapped by expressions, and carry the policy's headers; the answer is kept.
func TestPushSigns(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef0123456789abcdef")
	old := "whsec_" + base64.StdEncoding.EncodeToString(key)
	s := newSink(t, func(w http.ResponseWriter, _ *sent, _ int) int {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{ "took": true }`)
		return -http.StatusCreated
	})
	n := pushNode(t, "PUSH_SECRET="+old+" plainsecret-0123!")
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"push":{"url":%q,"secret_env":"PUSH_SECRET","headers":{"X-Own":"1"},
		"input":{"title":"'[' + kind + '] ' + payload.title","n":"payload.n","key":"key","q":"queue","a":"attempt","id":"id","h":"headers.trace","none":"payload.?none"}}}`, s.srv.URL+"/hook?x=y"))
	m := client.JSON(map[string]any{"title": "it", "n": 12345678901234567})
	m.IdempotencyKey = "once"
	m.Key, m.Kind, m.Headers = "k1", "note", map[string]string{"trace": "t", "traceparent": "00-x"}
	got, err := cl.Produce(t.Context(), "q", m)
	if err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "it is delivered", func() bool { return len(s.all()) == 1 })
	d := s.all()[0]
	want := fmt.Sprintf(`{"a":1,"h":"t","id":%q,"key":"k1","n":12345678901234567,"q":"q","title":"[note] it"}`, got[0].ID)
	if string(d.body) != want || d.header.Get("X-Own") != "1" || d.header.Get("Content-Type") != "application/json" || d.header.Get("Traceparent") != "00-x" {
		t.Errorf("got %s with %v, want %s", d.body, d.header, want)
	}
	at, err := strconv.ParseInt(d.header.Get("Webhook-Timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
		t.Errorf("signed at %v, %v", at, err)
	}
	have := strings.Fields(d.header.Get("Webhook-Signature"))
	for _, k := range [][]byte{key, []byte("plainsecret-0123!")} {
		mac := hmac.New(sha256.New, k)
		fmt.Fprintf(mac, "%s.%d.%s", d.id, at, d.body)
		sig := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		if !strings.Contains(" "+strings.Join(have, " ")+" ", " "+sig+" ") {
			t.Errorf("the signature with %q is not among %q", k, have)
		}
	}
	// A message that is produced again is told what came of the first.
	within(t, 5*time.Second, "its answer is kept", func() bool {
		again, err := cl.Produce(t.Context(), "q", m)
		return err == nil && again[0].Status == "duplicate" && string(again[0].Result) == `{"status":201,"answer":{"took":true}}`
	})
	for _, secret := range []string{"plainsecret", base64.StdEncoding.EncodeToString(key)} {
		if strings.Contains(n.Log(), secret) {
			t.Errorf("the log has a secret")
		}
	}
}

// TestPushTerm: a node that is told to end gives back what it has not sent, waits
// for what is on its way, and the next start delivers the rest.
func TestPushTerm(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	var once sync.Once
	s := newSink(t, func(http.ResponseWriter, *sent, int) int {
		select {
		case <-slow:
		case <-time.After(time.Second):
			once.Do(func() { close(slow) })
		}
		return http.StatusOK
	})
	n := pushNode(t)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"per_key","delivery":{"lease_ms":600000},"push":{"url":%q,"max_in_flight":4}}`, s.srv.URL))
	ids := keyed(t, cl, "q", 8, 3)
	within(t, 5*time.Second, "four are on their way", func() bool { return len(s.all()) == 4 })
	n.Term()
	if got := s.done(); got < 4 {
		t.Errorf("it ended while %d of 4 were answered", got)
	}
	n.Restart()
	// A lease that was not given back would hold its key for ten minutes.
	within(t, 10*time.Second, "the rest is delivered", func() bool { return s.done() == len(ids) })
	delivered(t, s, ids)
	if got := len(s.all()); got != len(ids) {
		t.Errorf("%d requests for %d messages", got, len(ids))
	}
}

// TestPushFailover: the leader is killed in the middle, again and again. Nothing is
// lost, order by key holds, and each delivery of a message has the same id.
func TestPushFailover(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(_ http.ResponseWriter, _ *sent, _ int) int {
		time.Sleep(20 * time.Millisecond)
		return http.StatusOK
	})
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: []string{"--push-allow-private"}})
	cl := c.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"per_key","delivery":{"lease_ms":3000,"max_attempts":0,"initial_backoff_ms":10},"push":{"url":%q,"max_in_flight":6}}`, s.srv.URL))
	made := make(chan []string, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	go func() { made <- keyed(t, cl, "q", 6, 50) }()
	for range 2 {
		before := s.done()
		within(t, 40*time.Second, "it goes on", func() bool { return s.done() > before+30 })
		leader := c.WaitLeader()
		leader.Kill9()
		leader.Restart()
	}
	var ids []string
	select {
	case ids = <-made:
	case <-ctx.Done():
		t.Fatal("producing takes too long")
	}
	within(t, 60*time.Second, "all are delivered", func() bool { return s.done() == len(ids) })
	delivered(t, s, ids)
	within(t, 10*time.Second, "all are acked", func() bool {
		q, err := cl.Queue(t.Context(), "q")
		return err == nil && q.Stats.AckedTotal == int64(len(ids))
	})
	t.Logf("%d requests for %d messages", len(s.all()), len(ids))
}

// TestPushPrivate: without the flag no policy can point inside, and one that does
// already is refused at the connection: no attempt is burnt on it.
func TestPushPrivate(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	n := pushNode(t)
	queue(t, n.Client(), "q", fmt.Sprintf(`{"push":{"url":%q},"delivery":{"max_attempts":1}}`, s.srv.URL))
	n.Term()
	n = cluster.Start(t, cluster.Options{Dir: n.Dir()})
	cl := n.Client()
	if _, err := cl.Produce(t.Context(), "q", client.JSON(1)); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the breaker opens", func() bool {
		_, b, err := n.Do(t.Context(), http.MethodGet, "/metrics", nil)
		return err == nil && strings.Contains(string(b), `qlogd_push_breaker_open{queue="q"} 1`)
	})
	time.Sleep(time.Second) // over a probe
	if q, err := cl.Queue(t.Context(), "q"); err != nil || q.Stats.Depth+q.Stats.Scheduled+q.Stats.InFlight != 1 {
		t.Errorf("%+v, %v", q, err)
	}
	if got := s.all(); len(got) > 0 {
		t.Errorf("%d requests went inside", len(got))
	}
	for _, url := range []string{s.srv.URL, "http://localhost/", "http://2130706433/", "http://[::ffff:7f00:1]/", "http://169.254.169.254/latest/", "http://10.0.0.1/", "http://a:b@example.com/"} {
		var p wire.PolicyUpdate
		if err := wire.Unmarshal(fmt.Appendf(nil, `{"push":{"url":%q}}`, url), &p); err != nil {
			t.Fatal(err)
		}
		if _, _, err := cl.PutQueue(t.Context(), "r", p); err == nil || !strings.Contains(err.Error(), "push.url") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
