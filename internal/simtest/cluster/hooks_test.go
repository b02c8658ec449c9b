package cluster_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

const hookSecret = "topsecret-0123456789-nobody-may-see-this"

// delivery is one of GitHub's bodies.
type delivery struct {
	event string
	body  []byte
}

// deliveries are the bodies in testdata.
func deliveries(t testing.TB) []delivery {
	t.Helper()
	f, err := os.Open("../../../testdata/github-webhooks.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []delivery
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 16<<20)
	for {
		if !sc.Scan() {
			if sc.Err() != nil || len(out) != 339 {
				t.Fatal(len(out), sc.Err())
			}
			return out
		}
		var line struct {
			Event   string         `json:"event"`
			Payload jsontext.Value `json:"payload"`
		}
		if err := wire.Unmarshal(sc.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		out = append(out, delivery{line.Event, line.Payload})
	}
}

// githubSender posts webhooks as GitHub does.
type githubSender struct{ http *http.Client }

func newSender() *githubSender {
	return &githubSender{&http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// send posts a webhook once.
func (g *githubSender) send(ctx context.Context, n *cluster.Node, hook, id string, d delivery) (int, http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.HTTPAddr()+"/hook/"+hook, bytes.NewReader(d.body))
	if err != nil {
		return 0, nil, nil, err
	}
	m := hmac.New(sha256.New, []byte(hookSecret))
	m.Write(d.body)
	for name, v := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "GitHub-Hookshot/044aadd", "X-GitHub-Event": d.event, "X-GitHub-Delivery": id,
		"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(m.Sum(nil)), "Authorization": "Bearer " + hookSecret,
	} {
		req.Header.Set(name, v)
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, b, err
}

// putHook makes a queue and a webhook into it.
func putHook(t *testing.T, cl *client.Client, queue string, policy wire.PolicyUpdate, change func(*wire.WebhookDefinition)) {
	t.Helper()
	if _, _, err := cl.PutQueue(t.Context(), queue, policy); err != nil {
		t.Fatal(err)
	}
	d := wire.WebhookDefinition{
		Queue: queue, VerifyHMAC: &wire.VerifyHMAC{Scheme: "github", SecretEnv: wire.Strings{"HOOK_SECRET"}},
		IdempotencyKey: "headers['x-github-delivery']", Kind: "headers['x-github-event']",
	}
	if change != nil {
		change(&d)
	}
	if _, _, err := cl.PutWebhook(t.Context(), queue, d); err != nil {
		t.Fatal(err)
	}
}

func hookCluster(t *testing.T, nodes int) *cluster.Cluster {
	return cluster.StartCluster(t, cluster.Options{Nodes: nodes, Env: []string{"HOOK_SECRET=" + hookSecret}})
}

// TestHooks: GitHub's own bodies, all 339 of them and in turn, go in signed
// through all nodes and out through workers, while a worker dies with fifty in
// hand and the leader is killed. A sender repeats what was not answered, as GitHub
// does by hand. In the end each delivery was made into one message, as it was
// sent, and acked once. HOOKS=n says how many deliveries.
func TestHooks(t *testing.T) {
	t.Parallel()
	bodies := deliveries(t)
	total := number(t, "HOOKS", 400)
	c := hookCluster(t, 3)
	cl := c.Client()
	lease := int64(2000)
	putHook(t, cl, "hooks", wire.PolicyUpdate{Delivery: wire.Some(wire.DeliveryUpdate{
		LeaseMS: wire.Some(lease), MaxAttempts: wire.Some(int64(0)), InitialBackoffMS: wire.Some(int64(0)),
	})}, nil)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var sent, acked atomic.Int64
	var senders, workers sync.WaitGroup
	g := newSender()
	next := make(chan int)
	for range 16 {
		senders.Go(func() {
			for i := range next {
				for try := 0; ; try++ {
					n := c.Node((i + try) % 3)
					status, _, b, err := g.send(ctx, n, "hooks", fmt.Sprint("delivery-", i), bodies[i%len(bodies)])
					if err == nil && (status == http.StatusAccepted || status == http.StatusOK && bytes.Contains(b, []byte(`"duplicate":true`)) && try > 0) {
						break
					}
					if err == nil && status < 500 && status != http.StatusTooManyRequests || ctx.Err() != nil {
						t.Errorf("delivery %d, try %d: %d %s", i, try, status, b)
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
				sent.Add(1)
			}
		})
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	ackedBy := map[string]int{} // message id: acks that were answered "acked"
	for range 4 {
		workers.Go(func() {
			for working.Err() == nil {
				got, err := cl.Lease(working, "hooks", client.LeaseOptions{Max: 20, Wait: 500 * time.Millisecond})
				if err != nil {
					continue
				}
				for _, m := range got {
					if what := differs(&m, bodies); what != "" {
						t.Errorf("message %s: %s", m.ID, what)
					}
					if results, err := cl.Ack(ctx, "hooks", m.LeaseID); err == nil && results[0].Status == "acked" {
						mu.Lock()
						ackedBy[m.ID]++
						mu.Unlock()
						acked.Add(1)
					}
				}
			}
		})
	}
	for i := range total {
		switch i {
		case total / 3:
			// A worker that is a process of its own takes fifty and is gone.
			if out, err := c.Follower().Run("lease", "hooks", "--max", "50", "-o", "json"); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		case total / 2:
			leader := c.WaitLeader()
			leader.Kill9()
			launch := sync.OnceFunc(leader.Launch)
			defer launch()
			time.AfterFunc(2*time.Second, launch)
		}
		select {
		case next <- i:
		case <-ctx.Done():
			t.Fatal("not sent in time")
		}
	}
	close(next)
	senders.Wait()
	c.WaitReady()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		q, err := cl.Queue(ctx, "hooks")
		if err == nil && q.Stats.AckedTotal == int64(total) && q.Stats.EnqueuedTotal == int64(total) && q.Stats.Depth+q.Stats.InFlight+q.Stats.Scheduled == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d: %+v, %v", total, q.Stats, err)
		}
	}
	stop()
	workers.Wait()
	for id, n := range ackedBy {
		if n > 1 {
			t.Errorf("message %s was acked %d times", id, n)
		}
	}
	t.Logf("%d deliveries, %d acks answered", sent.Load(), acked.Load())
}

// differs says what of a message is not as it was sent.
func differs(m *wire.LeasedMessage, bodies []delivery) string {
	var i int
	if _, err := fmt.Sscanf(m.Headers["x-github-delivery"], "delivery-%d", &i); err != nil {
		return err.Error()
	}
	d := bodies[i%len(bodies)]
	switch {
	case !bytes.Equal(canonical(m.Payload), canonical(d.body)):
		return "another payload"
	case m.Kind != d.event || m.Headers["x-github-event"] != d.event || m.Headers["webhook"] != "hooks" || m.Headers["source-ip"] != "127.0.0.1":
		return fmt.Sprint("other headers: ", m.Headers)
	case m.Headers["authorization"] != "" || m.Headers["x-hub-signature-256"] != "":
		return fmt.Sprint("credentials: ", m.Headers)
	}
	return ""
}

func canonical(b []byte) []byte {
	v := jsontext.Value(bytes.Clone(b))
	if err := v.Canonicalize(); err != nil {
		return nil
	}
	return v
}

// TestHookBurst: a thousand at once while nobody takes them are all queued, and
// where max_depth is reached the rest is told to come again.
func TestHookBurst(t *testing.T) {
	t.Parallel()
	bodies := deliveries(t)
	c := hookCluster(t, 1)
	cl := c.Client()
	putHook(t, cl, "hooks", wire.PolicyUpdate{}, nil)
	putHook(t, cl, "small", wire.PolicyUpdate{Retention: wire.Some(wire.RetentionUpdate{MaxDepth: wire.Some(int64(100))})}, nil)
	g := newSender()
	burst := func(hook string, n int) (count map[int]int, retry map[string]int) {
		count, retry = map[int]int{}, map[string]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		limit := make(chan struct{}, 200)
		for i := range n {
			limit <- struct{}{}
			all.Go(func() {
				defer func() { <-limit }()
				status, header, b, err := g.send(t.Context(), c.Node(0), hook, fmt.Sprint(hook, i), bodies[i%len(bodies)])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				count[status]++
				if status == http.StatusServiceUnavailable && bytes.Contains(b, []byte(`"code":"queue_full"`)) {
					retry[header.Get("Retry-After")]++
				}
			})
		}
		all.Wait()
		return count, retry
	}
	if count, _ := burst("hooks", 1000); count[http.StatusAccepted] != 1000 {
		t.Errorf("of a burst of 1000: %v", count)
	}
	if q, err := cl.Queue(t.Context(), "hooks"); err != nil || q.Stats.Depth != 1000 {
		t.Errorf("%v %+v", err, q)
	}
	if count, retry := burst("small", 150); count[http.StatusAccepted] != 100 || count[http.StatusServiceUnavailable] != 50 || retry["1"] != 50 {
		t.Errorf("into a queue for 100: %v, Retry-After %v", count, retry)
	}
	// Those that were taken are duplicates also while the queue is full.
	if count, _ := burst("small", 150); count[http.StatusOK] != 100 || count[http.StatusServiceUnavailable] != 50 {
		t.Errorf("again: %v", count)
	}
}

// TestHookOnce: of twenty with one idempotency key at once, at all nodes, one is
// queued.
func TestHookOnce(t *testing.T) {
	t.Parallel()
	c := hookCluster(t, 3)
	putHook(t, c.Client(), "hooks", wire.PolicyUpdate{}, nil)
	body := delivery{"ping", []byte(`{"zen":"Keep it logically awesome."}`)}
	g := newSender()
	for round := range 5 {
		var all sync.WaitGroup
		ids, statuses := make(chan string, 20), make(chan int, 20)
		for i := range 20 {
			all.Go(func() {
				status, _, b, err := g.send(t.Context(), c.Node(i%3), "hooks", fmt.Sprint("round", round), body)
				var out wire.Hooked
				if err != nil || wire.Unmarshal(b, &out) != nil || !out.OK {
					t.Errorf("%v %d %s", err, status, b)
				}
				ids <- out.MessageID
				statuses <- status
			})
		}
		all.Wait()
		close(ids)
		close(statuses)
		first, queued := "", 0
		for id := range ids {
			if first == "" {
				first = id
			}
			if id != first {
				t.Errorf("two messages, %s and %s", id, first)
			}
		}
		for status := range statuses {
			if status == http.StatusAccepted {
				queued++
			}
		}
		if queued != 1 {
			t.Errorf("%d were queued", queued)
		}
	}
}

// TestSecretsStayWhereTheyAre: one node of three lacks a secret and says so; and
// no file of any node, nor what it logs or answers, has one.
func TestSecretsStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: []string{"--log-level", "debug"}, PerNode: func(i int, o *cluster.Options) {
		if i != 2 {
			o.Env = append(o.Env, "HOOK_SECRET="+hookSecret)
		}
	}})
	cl := c.Client()
	putHook(t, cl, "hooks", wire.PolicyUpdate{}, func(d *wire.WebhookDefinition) {
		d.MapTo = &wire.MapTo{Input: map[string]string{"all": "headers"}}
	})
	body := delivery{"ping", []byte(`{"zen":"Anything added dilutes everything else."}`)}
	g := newSender()
	var told bytes.Buffer
	for i := range 3 {
		status, header, b, err := g.send(t.Context(), c.Node(i), "hooks", fmt.Sprint("d", i), body)
		if err != nil {
			t.Fatal(err)
		}
		_ = header.Write(&told)
		told.Write(b)
		if want := map[bool]int{true: 503, false: 202}[i == 2]; status != want {
			t.Errorf("%s: %d %s", c.Node(i).Name(), status, b)
		}
		ready, answer, err := c.Node(i).Do(t.Context(), http.MethodGet, "/readyz", nil)
		if err != nil || ready != 200 || bytes.Contains(answer, []byte("secret_missing: webhook hooks: environment variable HOOK_SECRET is not set")) != (i == 2) {
			t.Errorf("%s: %d %s %v", c.Node(i).Name(), ready, answer, err)
		}
		told.Write(answer)
		bad := delivery{"ping", []byte("{}")}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.Node(i).URL()+"/hook/hooks", bytes.NewReader(bad.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Hub-Signature-256", "sha256=00")
		resp, err := g.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(&told, resp.Body)
		_ = resp.Body.Close()
	}
	for _, path := range []string{"/v1/events?from=start", "/v1/webhooks", "/v1/queues/hooks/messages", "/metrics"} {
		status, b, err := c.Node(0).Do(t.Context(), http.MethodGet, path, nil)
		if err != nil || status != 200 {
			t.Fatalf("%s: %d %v", path, status, err)
		}
		told.Write(b)
	}
	if !bytes.Contains(told.Bytes(), []byte("X-GitHub-Delivery")) && !bytes.Contains(told.Bytes(), []byte("x-github-delivery")) {
		t.Error("the messages were not looked at")
	}
	if bytes.Contains(told.Bytes(), []byte(hookSecret)) {
		t.Errorf("an answer has the secret: %s", told.Bytes())
	}
	c.TermAll()
	files := 0
	for _, n := range c.Nodes() {
		if strings.Contains(n.Log(), hookSecret) {
			t.Errorf("%s logs the secret", n.Name())
		}
		err := filepath.WalkDir(n.Dir(), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files++
			if bytes.Contains(b, []byte(hookSecret)) {
				t.Errorf("%s has the secret", name)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 15 {
		t.Errorf("only %d files were looked at", files)
	}
}

// TestHookForwards: a webhook with a target is answered as the target answers;
// private targets only where that is allowed, and redirects are not followed.
func TestHookForwards(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[http.Request]
	var body atomic.Value
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got.Store(r)
		body.Store(string(b))
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/in", http.StatusFound)
		case "/large":
			_, _ = w.Write(make([]byte, 1<<20+1))
		case "/reset":
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("Set-Cookie", "a=b")
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "short and stout")
		}
	}))
	t.Cleanup(target.Close)
	env := []string{"HOOK_SECRET=" + hookSecret}
	strict := cluster.StartCluster(t, cluster.Options{Nodes: 1, Env: env})
	c := cluster.StartCluster(t, cluster.Options{Nodes: 1, Env: env, Flags: []string{"--push-allow-private"}})
	def := func(path string) wire.WebhookDefinition {
		return wire.WebhookDefinition{
			Target: target.URL + path, VerifyHMAC: &wire.VerifyHMAC{Scheme: "github", SecretEnv: wire.Strings{"HOOK_SECRET"}},
			IdempotencyKey: "headers['x-github-delivery']", MapTo: &wire.MapTo{Input: map[string]string{"zen": "payload.zen"}},
		}
	}
	var refused *client.Error
	for _, url := range []string{target.URL, "http://localhost/", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/", "http://0x7f000001/", "file:///etc/passwd", "http://user:pw@example.com/", "x"} {
		d := def("")
		d.Target = url
		if _, _, err := strict.Client().PutWebhook(t.Context(), "w", d); !errors.As(err, &refused) || refused.Problem.Field != "target" || refused.Problem.Status != 400 {
			t.Errorf("%s: %v", url, err)
		}
	}
	g := newSender()
	for path, want := range map[string]int{"/in": 418, "/moved": 302, "/large": 502, "/reset": 502} {
		if _, _, err := c.Client().PutWebhook(t.Context(), "w", def(path)); err != nil {
			t.Fatal(err)
		}
		status, header, b, err := g.send(t.Context(), c.Node(0), "w", "d1", delivery{"ping", []byte(`{"zen":"Half measures are as bad as nothing at all.","more":1}`)})
		if err != nil || status != want {
			t.Errorf("%s: %d %s %v", path, status, b, err)
			continue
		}
		if path == "/in" && (string(b) != "short and stout" || header.Get("Content-Type") != "text/plain; charset=utf-8" || header.Get("Set-Cookie") != "") {
			t.Errorf("%s %v", b, header)
		}
		if got.Load().URL.Path != path || body.Load() != `{"zen":"Half measures are as bad as nothing at all."}` {
			t.Errorf("%s had %s %s", path, got.Load().URL, body.Load())
		}
		if h := got.Load().Header; h.Get("Idempotency-Key") != "d1" || h.Get("X-Github-Event") != "ping" || h.Get("Webhook") != "w" || h.Get("Authorization") != "" || h.Get("X-Hub-Signature-256") != "" {
			t.Errorf("%v", h)
		}
	}
}
