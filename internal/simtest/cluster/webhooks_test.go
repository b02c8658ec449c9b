package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// hookFile is applied by the program. What is made of a delivery says which one
// it was and what was in it.
const hookFile = `
queues:
  - name: hooks
    delivery: {max_attempts: 0, initial_backoff_ms: 0, lease_ms: 3000}
  - name: small
    retention: {max_depth: 50}
webhooks:
  - name: github
    queue: hooks
    verify_hmac: {scheme: github, secret_env: HOOK_SECRET}
    idempotency_key: headers["x-github-delivery"]
    kind: headers["x-github-event"]
    map_to:
      input:
        delivery: headers["x-github-delivery"]
        event: headers["x-github-event"]
        action: 'has(payload.action) ? payload.action : "none"'
        sender: 'has(payload.sender) ? payload.sender.login : "nobody"'
        public: 'has(payload.repository) && has(payload.repository.private) && !payload.repository.private'
  - name: burst
    queue: burst
    verify_hmac: {scheme: github, secret_env: HOOK_SECRET}
  - name: small
    queue: small
    verify_hmac: {scheme: github, secret_env: HOOK_SECRET}
---
queues: [{name: burst}]
`

// mapped is what hookFile makes of a delivery, worked out here.
func mapped(t *testing.T, d delivery, id string) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal(d.body, &p); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{"delivery": id, "event": d.event, "action": "none", "sender": "nobody", "public": false}
	if action, ok := p["action"]; ok {
		out["action"] = action
	}
	if sender, ok := p["sender"].(map[string]any); ok {
		out["sender"] = sender["login"]
	}
	if repository, ok := p["repository"].(map[string]any); ok && repository["private"] != nil {
		out["public"] = repository["private"] == false
	}
	return out
}

// hookAnswer is what /hook says.
type hookAnswer struct {
	Queued, Duplicate bool
	MessageID         string `json:"message_id"`
	Status            int    `json:"-"`
	RetryAfter        string `json:"-"`
	Code              string
}

// post sends a webhook to a node, once.
func (g *githubSender) post(ctx context.Context, n *cluster.Node, hook, id string, d delivery) (a hookAnswer, err error) {
	status, header, text, err := g.send(ctx, n, hook, id, d)
	if err != nil {
		return a, err
	}
	a.Status, a.RetryAfter = status, header.Get("Retry-After")
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("%d %s: %w", status, text, err)
	}
	return a, nil
}

// deliver posts until it is taken, to one node after another, as those who send
// webhooks do. repeats counts the tries that told nothing or to try again.
func (g *githubSender) deliver(ctx context.Context, t *testing.T, nodes []*cluster.Node, first int, id string, d delivery, repeats *atomic.Int64) hookAnswer {
	for i := first; ; i++ {
		a, err := g.post(ctx, nodes[i%len(nodes)], "github", id, d)
		switch {
		case ctx.Err() != nil:
			return a
		case err == nil && (a.Status == http.StatusAccepted || a.Status == http.StatusOK):
			return a
		case err == nil && a.Status != http.StatusServiceUnavailable && a.Status != http.StatusTooManyRequests:
			t.Errorf("delivery %s: %d %s", id, a.Status, a.Code)
			return a
		}
		repeats.Add(1)
		time.Sleep(50 * time.Millisecond)
	}
}

// workerOf names the nodes to a worker process, which TestMain makes of this
// program where it is set.
const workerOf = "QLOGD_TEST_WORKER"

// workAway is such a process: it writes down what it processes, a line each before it
// acks it, until it is killed or its standard input ends.
func workAway(addrs string) {
	c, err := client.New(addrs)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var mu sync.Mutex
	w := client.NewWorker(c, "hooks", func(_ context.Context, m *client.Message) error {
		time.Sleep(5 * time.Millisecond) // so that there is work in hand whenever it dies
		line, err := json.Marshal(processed{m.ID, m.Attempt, m.Kind, json.RawMessage(m.Bytes())})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = os.Stdout.Write(append(line, '\n'))
		return err
	}, client.WorkerOptions{Concurrency: 8, Lease: 3 * time.Second})
	if err := w.Run(ctx); err != nil {
		panic(err)
	}
}

type processed struct {
	ID      string
	Attempt int64
	Kind    string
	Payload json.RawMessage
}

// processing is what all workers together have done.
type processing struct {
	mu      sync.Mutex
	ids     map[string]map[string]bool // messages by delivery
	last    map[string]processed
	lines   int
	later   int         // of these, not at the first attempt
	arrived chan string // deliveries, where somebody listens
}

func (p *processing) read(t *testing.T, r io.Reader) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var one processed
		var what struct{ Delivery string }
		if json.Unmarshal(sc.Bytes(), &one) != nil || json.Unmarshal(one.Payload, &what) != nil {
			continue // torn when its worker was killed
		}
		p.mu.Lock()
		if p.ids[what.Delivery] == nil {
			p.ids[what.Delivery] = map[string]bool{}
		}
		p.ids[what.Delivery][one.ID] = true
		p.last[what.Delivery] = one
		p.lines++
		if one.Attempt > 1 {
			p.later++
		}
		p.mu.Unlock()
		select {
		case p.arrived <- what.Delivery:
		default:
		}
	}
	if err := sc.Err(); err != nil {
		t.Error(err)
	}
}

func (p *processing) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ids)
}

// worker is a process that works.
type worker struct {
	cmd  *exec.Cmd
	stop io.Closer
	read chan struct{}
}

func (p *processing) start(t *testing.T, c *cluster.Cluster) *worker {
	t.Helper()
	var addrs []string
	for _, n := range c.Nodes() {
		addrs = append(addrs, n.URL())
	}
	w := &worker{cmd: exec.Command(os.Args[0]), read: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), workerOf+"="+strings.Join(addrs, ","))
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if w.stop, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.read)
		p.read(t, out)
	}()
	t.Cleanup(w.kill)
	return w
}

func (w *worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Signal(syscall.SIGKILL)
		<-w.read
		_ = w.cmd.Wait()
	}
}

func (w *worker) end(t *testing.T) {
	t.Helper()
	_ = w.stop.Close()
	<-w.read
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("worker: %v", err)
	}
}

// TestWebhooks takes signed webhooks in through all nodes of a cluster while
// worker processes process them, one of which is killed in the middle, and so is
// the leader: none is lost, none becomes two messages, and each is mapped as its
// definition says. Then it is told how soon a waiting worker sees one, and how a
// burst and a full queue are answered.
//
//	WEBHOOKS: how many
//	WEBHOOKS_SECONDS: how long latency is looked at
func TestWebhooks(t *testing.T) {
	count, seconds := cluster.Number(t, "WEBHOOKS", 400), cluster.Number(t, "WEBHOOKS_SECONDS", 2)
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Env: []string{"HOOK_SECRET=" + hookSecret}})
	file := filepath.Join(t.TempDir(), "hooks.yaml")
	if err := os.WriteFile(file, []byte(hookFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Follower().Run("apply", "-f", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bodies := deliveries(t)
	p := &processing{ids: map[string]map[string]bool{}, last: map[string]processed{}, arrived: make(chan string, 1<<16)}

	campaign(t, c, p, bodies, count)
	latency(t, c, p, bodies, seconds)
	burst(t, c, bodies)
	full(t, c, bodies)
}

func campaign(t *testing.T, c *cluster.Cluster, p *processing, bodies []delivery, count int) {
	workers := []*worker{p.start(t, c), p.start(t, c), p.start(t, c)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	begun, g := time.Now(), newSender()
	var next, repeats, twice atomic.Int64
	messages := make([]string, count) // by delivery
	var senders sync.WaitGroup
	for s := range 12 {
		senders.Go(func() {
			r := rand.New(rand.NewPCG(uint64(s), 1))
			for {
				i := int(next.Add(1)) - 1
				if i >= count || ctx.Err() != nil {
					return
				}
				d, id := bodies[i%len(bodies)], fmt.Sprintf("delivery-%d", i)
				a := g.deliver(ctx, t, c.Nodes(), i, id, d, &repeats)
				messages[i] = a.MessageID
				if r.IntN(20) == 0 { // some are sent again although they were taken
					again := g.deliver(ctx, t, c.Nodes(), i+1, id, d, &repeats)
					if twice.Add(1); !again.Duplicate || again.MessageID != a.MessageID {
						t.Errorf("%s again: %+v, first %+v", id, again, a)
					}
				}
			}
		})
	}
	reach(t, ctx, "a third sent", func() bool { return int(next.Load()) > count/3 })
	workers[0].kill()
	workers[0] = p.start(t, c)
	reach(t, ctx, "half sent", func() bool { return int(next.Load()) > count/2 })
	leader := c.WaitLeader()
	leader.Kill9()
	reach(t, ctx, "two thirds sent", func() bool { return int(next.Load()) > count*2/3 })
	leader.Restart()
	senders.Wait()
	sent := time.Since(begun)
	reach(t, ctx, "all processed", func() bool { return p.count() >= count })
	took := time.Since(begun)

	// What was processed last is acked by then.
	q := c.Client()
	reach(t, ctx, "all acked", func() bool {
		v, err := q.Queue(ctx, "hooks")
		return err == nil && v.Stats.AckedTotal >= int64(count)
	})
	v, err := q.Queue(ctx, "hooks")
	if err != nil {
		t.Fatal(err)
	}
	if s := v.Stats; s.EnqueuedTotal != int64(count) || s.AckedTotal != int64(count) || s.Depth+s.InFlight+s.Scheduled != 0 {
		t.Errorf("%d webhooks, and the queue says %+v", count, s)
	}
	p.mu.Lock()
	for i := range count {
		d, id := bodies[i%len(bodies)], fmt.Sprintf("delivery-%d", i)
		ids := p.ids[id]
		if len(ids) != 1 || !ids[messages[i]] {
			t.Errorf("%s was answered as message %s, and processed as %v", id, messages[i], ids)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal(p.last[id].Payload, &got); err != nil {
			t.Error(err)
		}
		if want := mapped(t, d, id); !reflect.DeepEqual(got, want) || p.last[id].Kind != d.event {
			t.Errorf("%s: %v of kind %s, want %v", id, got, p.last[id].Kind, want)
		}
	}
	if len(p.ids) != count {
		t.Errorf("%d deliveries were processed", len(p.ids))
	}
	t.Logf("%d webhooks through 3 nodes: taken in %s, processed in %s; %d tries repeated while the leader was away, %d sent twice; %d were processed at a later attempt, after the worker that had them died, %d of these for the second time",
		count, sent.Round(time.Millisecond), took.Round(time.Millisecond), repeats.Load(), twice.Load(), p.later, p.lines-count)
	p.mu.Unlock()

	original(t, c, bodies[0], messages[0])
	for _, w := range workers {
		w.end(t)
	}
}

// original looks whether the body is kept beside what was made of it, and the
// signature nowhere.
func original(t *testing.T, c *cluster.Cluster, d delivery, id string) {
	t.Helper()
	status, text, err := c.Follower().Do(t.Context(), http.MethodGet, "/v1/messages/"+id, nil)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d %v %s", status, err, text)
	}
	var m struct {
		Original json.RawMessage
		Headers  map[string]string
	}
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	var got, want any
	if json.Unmarshal(m.Original, &got) != nil || json.Unmarshal(d.body, &want) != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the original is %.200s", m.Original)
	}
	if m.Headers["webhook"] != "github" || m.Headers["x-github-event"] != d.event || m.Headers["x-hub-signature-256"] != "" {
		t.Errorf("headers %v", m.Headers)
	}
}

// latency tells how long it takes from the moment a webhook is sent until a
// worker that waits has processed it, at a moderate rate.
func latency(t *testing.T, c *cluster.Cluster, p *processing, bodies []delivery, seconds int) {
	c.WaitVoters()
	w, g := p.start(t, c), newSender()
	var mu sync.Mutex
	sent, took := map[string]time.Time{}, []time.Duration(nil)
	all, stop := make(chan struct{}), make(chan struct{})
	n := 50 * seconds
	go func() {
		for {
			var id string
			select {
			case id = <-p.arrived:
			case <-stop:
				return
			}
			mu.Lock()
			if at, ok := sent[id]; ok {
				took = append(took, time.Since(at))
				if len(took) == n {
					close(all)
				}
			}
			mu.Unlock()
		}
	}()
	defer close(stop)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var repeats atomic.Int64
	var posts sync.WaitGroup
	for i := range n {
		<-tick.C
		posts.Go(func() {
			id := fmt.Sprintf("timed-%d", i)
			mu.Lock()
			sent[id] = time.Now()
			mu.Unlock()
			g.deliver(t.Context(), t, c.Nodes(), i, id, bodies[i%len(bodies)], &repeats)
		})
	}
	posts.Wait()
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatal("not all of them came to the worker within a minute")
	}
	w.end(t)
	mu.Lock()
	defer mu.Unlock()
	t.Logf("from a webhook's sending, 50 a second, to a waiting worker: %s, p99 %s", cluster.Spread(took), slices.Sorted(slices.Values(took))[len(took)*99/100].Round(100*time.Microsecond))
}

// burst sends a thousand at once that nobody works on.
func burst(t *testing.T, c *cluster.Cluster, bodies []delivery) {
	const n = 1000
	begun, g := time.Now(), newSender()
	var next, refused atomic.Int64
	var senders sync.WaitGroup
	for range 32 {
		senders.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				a, err := g.post(t.Context(), c.Node(int(i)%3), "burst", fmt.Sprint(i), bodies[int(i)%len(bodies)])
				if err != nil || a.Status != http.StatusAccepted || !a.Queued {
					refused.Add(1)
					t.Errorf("burst: %+v %v", a, err)
				}
			}
		})
	}
	senders.Wait()
	q, err := c.Client().Queue(t.Context(), "burst")
	if err != nil || q.Stats.Depth != n-refused.Load() {
		t.Errorf("depth %+v %v", q, err)
	}
	t.Logf("a burst of %d while nobody works: %d answered with 202, in %s", n, n-refused.Load(), time.Since(begun).Round(time.Millisecond))
}

// full fills a queue with a max_depth of 50.
func full(t *testing.T, c *cluster.Cluster, bodies []delivery) {
	for i := range 60 {
		a, err := newSender().post(t.Context(), c.Node(i%3), "small", fmt.Sprint(i), bodies[i])
		switch {
		case err != nil:
			t.Fatal(err)
		case i < 50 && a.Status != http.StatusAccepted:
			t.Errorf("webhook %d: %+v", i+1, a)
		case i >= 50 && (a.Status != http.StatusServiceUnavailable || a.Code != "queue_full" || a.RetryAfter == ""):
			t.Errorf("webhook %d, where 50 fit: %+v", i+1, a)
		}
	}
}

// reach waits for a state that comes by itself.
func reach(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for: %s: %v", what, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
