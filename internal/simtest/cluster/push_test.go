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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/ports"
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

// explain asks a node why a queue's messages are not delivered.
func explain(t *testing.T, n *cluster.Node, queue string) string {
	t.Helper()
	status, b, err := n.Do(t.Context(), http.MethodGet, "/v1/queues/"+queue+"/explain?key=", nil)
	if err != nil || status != http.StatusOK {
		t.Errorf("explain: %d, %v", status, err)
	}
	return string(b)
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

// TestPushGone: 410 dead-letters at once; a message that can't be mapped, too.
func TestPushGone(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(_ http.ResponseWriter, r *sent, _ int) int {
		if r.n == 1 {
			return http.StatusGone
		}
		return http.StatusNoContent
	})
	cl := pushNode(t).Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"fifo","delivery":{"dead_letter_queue":"auto"},"push":{"url":%q,"input":{"n":"payload.n"}}}`, s.srv.URL))
	for _, v := range []any{map[string]int{"n": 1}, map[string]int{"m": 2}, map[string]int{"n": 3}} {
		if _, err := cl.Produce(t.Context(), "q", client.JSON(v)); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 10*time.Second, "two are dead, one is acked", func() bool {
		q, err := cl.Queue(t.Context(), "q")
		return err == nil && q.Stats.DeadLetteredTotal == 2 && q.Stats.AckedTotal == 1
	})
	if all := s.all(); len(all) != 2 {
		t.Errorf("%d requests", len(all))
	}
}

// TestPushBreaker: a target that can't be reached costs a few attempts and no
// more; when it is there again all goes on, and explain and metrics tell.
func TestPushBreaker(t *testing.T) {
	t.Parallel()
	addr := ports.Free(t)
	n := pushNode(t)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"delivery":{"max_attempts":3,"initial_backoff_ms":10,"max_backoff_ms":10,"dead_letter_queue":"auto"},"push":{"url":"http://%s/","max_in_flight":2}}`, addr))
	for i := range 20 {
		if _, err := cl.Produce(t.Context(), "q", client.JSON(map[string]int{"n": i})); err != nil {
			t.Fatal(err)
		}
	}
	metric := func(want string) func() bool {
		return func() bool {
			_, b, err := n.Do(t.Context(), http.MethodGet, "/metrics", nil)
			return err == nil && strings.Contains(string(b), want)
		}
	}
	within(t, 10*time.Second, "the breaker opens", metric(`qlogd_push_breaker_open{queue="q"} 1`))
	time.Sleep(1500 * time.Millisecond) // over the first probe
	q, err := cl.Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	if q.Stats.DeadLetteredTotal > 2 || q.Stats.Depth+q.Stats.Scheduled+q.Stats.InFlight < 18 {
		t.Errorf("while the target was down: %+v", q.Stats)
	}
	if why := explain(t, n, "q"); !strings.Contains(why, "push_target_down") || !strings.Contains(why, "refused") {
		t.Errorf("explain: %s", why)
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := newSink(t, nil)
	back := &http.Server{Handler: s}
	go func() { _ = back.Serve(lis) }()
	defer back.Close()
	within(t, 20*time.Second, "the rest is delivered", func() bool { return int64(s.done())+q.Stats.DeadLetteredTotal == 20 })
	within(t, 5*time.Second, "the breaker closes", metric(`qlogd_push_breaker_open{queue="q"} 0`))
	if !metric(`qlogd_push_deliveries_total{outcome="acked",queue="q"} `)() {
		t.Error("deliveries are not counted")
	}
}

// TestPushLimits: no more at a time, and no more a second, than the policy says.
func TestPushLimits(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(http.ResponseWriter, *sent, int) int {
		time.Sleep(50 * time.Millisecond)
		return http.StatusOK
	})
	cl := pushNode(t).Client()
	push := func(name, more string) {
		queue(t, cl, name, fmt.Sprintf(`{"push":{"url":%q%s}}`, s.srv.URL, more))
		var all []wire.NewMessage
		for i := range 40 {
			all = append(all, client.JSON(map[string]int{"n": i}))
		}
		if _, err := cl.ProduceAll(t.Context(), name, all); err != nil {
			t.Fatal(err)
		}
	}
	push("flight", `,"max_in_flight":3`)
	within(t, 20*time.Second, "all are delivered", func() bool { return s.done() == 40 })
	if s.top != 3 {
		t.Errorf("%d at a time, want 3", s.top)
	}
	began := time.Now()
	push("rate", `,"rate_per_second":20,"max_in_flight":100`)
	within(t, 20*time.Second, "all are delivered", func() bool { return s.done() == 80 })
	if took := time.Since(began); took < 1900*time.Millisecond || took > 6*time.Second {
		t.Errorf("40 at 20 a second took %s", took)
	}
	all := s.all()[40:]
	for i := range all {
		n := 0
		for j := i; j < len(all) && all[j].at.Sub(all[i].at) < time.Second; j++ {
			n++
		}
		if n > 22 {
			t.Errorf("%d within a second", n)
			break
		}
	}
}

// TestPushSecretMissing: without its secret nothing is leased.
func TestPushSecretMissing(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	n := pushNode(t)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"push":{"url":%q,"secret_env":"NOBODY_SET_THIS"}}`, s.srv.URL))
	if _, err := cl.Produce(t.Context(), "q", client.JSON(1)); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "readyz says so", func() bool {
		_, b, err := n.Do(t.Context(), http.MethodGet, "/readyz", nil)
		return err == nil && strings.Contains(string(b), "NOBODY_SET_THIS")
	})
	q, err := cl.Queue(t.Context(), "q")
	if err != nil || q.Stats.Depth != 1 || len(s.all()) > 0 {
		t.Errorf("%+v, %v", q, err)
	}
	if why := explain(t, n, "q"); !strings.Contains(why, "push_secret_missing") || !strings.Contains(why, "NOBODY_SET_THIS") {
		t.Errorf("explain: %s", why)
	}
	// Others can still lease.
	if got, err := cl.Lease(t.Context(), "q", client.LeaseOptions{}); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestPushAnswers: what a target answers goes into another queue, in the entry of
// the ack.
func TestPushAnswers(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(w http.ResponseWriter, r *sent, _ int) int {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = fmt.Fprintf(w, `{"of": %d}`, r.n)
		return -http.StatusOK
	})
	cl := pushNode(t).Client()
	policy := fmt.Sprintf(`{"ordering":"per_key","push":{"url":%q,"answer_to":"answers"}}`, s.srv.URL)
	var p wire.PolicyUpdate
	if err := wire.Unmarshal([]byte(policy), &p); err != nil {
		t.Fatal(err)
	}
	if _, _, err := cl.PutQueue(t.Context(), "q", p); err == nil || !strings.Contains(err.Error(), "push.answer_to") {
		t.Errorf("a queue that is not there was taken: %v", err)
	}
	queue(t, cl, "answers", `{"ordering":"per_key"}`)
	queue(t, cl, "q", policy)
	ids := keyed(t, cl, "q", 3, 4)
	var answers []wire.LeasedMessage
	within(t, 10*time.Second, "all are answered", func() bool {
		got, err := cl.Lease(t.Context(), "answers", client.LeaseOptions{Max: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got {
			if _, err := cl.Ack(t.Context(), "answers", m.LeaseID); err != nil {
				t.Fatal(err)
			}
		}
		answers = append(answers, got...)
		return len(answers) >= len(ids)
	})
	of := map[string]wire.LeasedMessage{}
	for _, a := range answers {
		of[a.Headers["answer-of"]] = a
	}
	for i, id := range ids {
		a := of[id]
		if want := fmt.Sprintf(`{"of":%d}`, i/3); string(a.Payload) != want || a.Key != fmt.Sprint("k", i%3) {
			t.Errorf("message %d: answer %s of key %q, want %s", i, a.Payload, a.Key, want)
		}
		h, err := cl.History(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		enqueued, err := cl.History(t.Context(), a.ID)
		if err != nil {
			t.Fatal(err)
		}
		if last := h[len(h)-1]; last.Type != "acked" || last.Index != enqueued[0].Index {
			t.Errorf("acked in entry %d, answered in entry %d", last.Index, enqueued[0].Index)
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

// TestPushTermHang: a target that does not answer holds no node up, and its
// message no key: it is given back.
func TestPushTermHang(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(_ http.ResponseWriter, r *sent, seen int) int {
		if seen == 1 {
			<-r.gone
			return 0
		}
		return http.StatusOK
	})
	n := pushNode(t)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"fifo","push":{"url":%q}}`, s.srv.URL))
	got, err := cl.Produce(t.Context(), "q", client.JSON(1))
	if err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "it is on its way", func() bool { return len(s.all()) == 1 })
	began := time.Now()
	n.Term()
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("it took %s to end", took)
	}
	n.Restart()
	within(t, 5*time.Second, "it is delivered", func() bool { return s.done() == 1 })
	// The ack is committed a moment after the target has answered.
	var types string
	within(t, 5*time.Second, "it is acked", func() bool {
		h, err := cl.History(t.Context(), got[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range h {
			all = append(all, e.Type)
		}
		types = strings.Join(all, " ")
		return strings.HasSuffix(types, " acked")
	})
	if want := "enqueued leased lease_extended released leased acked"; types != want && types != strings.Replace(want, " lease_extended", "", 1) {
		t.Errorf("%v, want %s", types, want)
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

// TestPushTransfer: a leader that hands over ends what it has begun and gives back
// what it has not: nothing waits for a lease to run out, and nothing is sent twice.
func TestPushTransfer(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(http.ResponseWriter, *sent, int) int {
		time.Sleep(20 * time.Millisecond)
		return http.StatusOK
	})
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: []string{"--push-allow-private"}})
	cl := c.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"ordering":"per_key","push":{"url":%q,"max_in_flight":4}}`, s.srv.URL))
	ids := keyed(t, cl, "q", 6, 50)
	for range 3 {
		before := s.done()
		within(t, 20*time.Second, "it goes on", func() bool { return s.done() > before+20 })
		if _, err := cl.TransferLeadership(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 30*time.Second, "all are delivered", func() bool { return s.done() == len(ids) })
	delivered(t, s, ids)
	if got := len(s.all()); got != len(ids) {
		t.Errorf("%d requests for %d messages", got, len(ids))
	}
}

// TestPushOff: a copy of the past delivers nothing, to nobody, and says why.
func TestPushOff(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	n := pushNode(t)
	cl := n.Client()
	queue(t, cl, "q", fmt.Sprintf(`{"push":{"url":%q}}`, s.srv.URL))
	if err := cl.PauseQueue(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Produce(t.Context(), "q", client.JSON(1)); err != nil {
		t.Fatal(err)
	}
	n.Term()
	then := filepath.Join(t.TempDir(), "then")
	if out, err := n.Run("replay", "--data-dir", n.Dir(), "--into", then); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	copied := cluster.Start(t, cluster.Options{Dir: then, Flags: []string{"--push-allow-private"}})
	if err := copied.Client().ResumeQueue(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	n.Restart()
	if err := cl.ResumeQueue(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the original delivers", func() bool { return s.done() == 1 })
	time.Sleep(300 * time.Millisecond)
	if got := len(s.all()); got != 1 {
		t.Errorf("%d requests: the copy delivers, too", got)
	}
	if why := explain(t, copied, "q"); !strings.Contains(why, "push_off") {
		t.Errorf("explain: %s", why)
	}
	q, err := copied.Client().Queue(t.Context(), "q")
	if err != nil || q.Stats.Depth != 1 {
		t.Errorf("%+v, %v", q, err)
	}
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
