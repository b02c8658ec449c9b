package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// hookFile is applied by the program. What is made of a delivery says which one
// it was and what was in it.
const hookFile = `
queues:
  - name: hooks
    delivery: {max_attempts: 0, initial_backoff_ms: 0, lease_ms: 3000}
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
        public: >-
          has(payload.repository) && has(payload.repository.private)
          && !payload.repository.private
`

// mapped is what hookFile makes of a delivery, worked out here.
func mapped(t *testing.T, d delivery, id string) map[string]any {
	t.Helper()
	var p map[string]any
	require.NoError(t, json.Unmarshal(d.body, &p))
	out := map[string]any{"delivery": id, "event": d.event, "action": "none", "sender": "nobody",
		"public": false}
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

// deliver posts until it is taken, to one node after another, as senders of
// webhooks do. repeats counts the tries that failed.
func deliver(ctx context.Context, t *testing.T, s hookSender, nodes []*cluster.Node, first int,
	id string, d delivery, repeats *atomic.Int64) (a hookAnswer) {
	i := first - 1
	_ = cluster.Poll(ctx, func() (err error) {
		i++
		a, err = s.send(ctx, nodes[i%len(nodes)], "github", d.body, "X-GitHub-Event", d.event,
			"X-GitHub-Delivery", id)
		switch {
		case err != nil, a.status == http.StatusServiceUnavailable,
			a.status == http.StatusTooManyRequests:
			repeats.Add(1)
			return errors.New("again")
		case a.status != http.StatusAccepted && a.status != http.StatusOK:
			t.Errorf("delivery %s: %d %s", id, a.status, a.Code)
		}
		return nil
	})
	return a
}

// workerOf names the nodes to a worker process, which TestMain makes of this
// program where it is set.
const workerOf = "QLOGD_TEST_WORKER"

// stuck makes a worker never finish what it works on.
const stuck = "QLOGD_TEST_STUCK=1"

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
	w := client.NewWorker(c, "hooks", func(ctx context.Context, m *client.Message) error {
		if slices.Contains(os.Environ(), stuck) {
			<-ctx.Done()
			return ctx.Err()
		}
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
	mu    sync.Mutex
	ids   map[string]map[string]bool // messages by delivery
	last  map[string]processed
	lines int
	later int // of these, not at the first attempt
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
	}
	require.NoError(t, sc.Err())
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

func (p *processing) start(t *testing.T, c *cluster.Cluster, env ...string) *worker {
	t.Helper()
	var addrs []string
	for _, n := range c.Nodes() {
		addrs = append(addrs, n.URL())
	}
	w := &worker{cmd: exec.Command(os.Args[0]), read: make(chan struct{})}
	w.cmd.Env = append(append(os.Environ(), env...), workerOf+"="+strings.Join(addrs, ","))
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	if w.stop, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, w.cmd.Start())
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
	assert.NoError(t, w.cmd.Wait(), "worker")
}

// TestWebhooks takes signed webhooks in through all nodes of a cluster while
// worker processes process them, one of which is killed in the middle, and so is
// the leader: none is lost, none becomes two messages, each is mapped as its
// definition says, and the secret is nowhere.
//
//	WEBHOOKS: how many
func TestWebhooks(t *testing.T) {
	t.Parallel()
	count := cluster.Number(t, "WEBHOOKS", 90)
	const secret = "topsecret-0123456789-nobody-may-see-this"
	c := cluster.StartCluster(t, cluster.Options{
		Nodes: 3, Env: []string{"HOOK_SECRET=" + secret}, Flags: []string{"--log-level", "debug"},
	})
	file := filepath.Join(t.TempDir(), "hooks.yaml")
	require.NoError(t, os.WriteFile(file, []byte(hookFile), 0o600))
	if out, err := c.Follower().Run("apply", "-f", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bodies := deliveries(t)
	p := &processing{ids: map[string]map[string]bool{}, last: map[string]processed{}}
	workers := []*worker{p.start(t, c, stuck)} // alone, until it has leased something
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	begun, s := time.Now(), hookSender{"X-Hub-Signature-256", "sha256=", secret}
	var next, repeats, twice atomic.Int64
	messages := make([]string, count) // by delivery
	third, half, most := make(chan struct{}), make(chan struct{}), make(chan struct{})
	marks := map[int]chan struct{}{count / 3: third, count / 2: half, count * 2 / 3: most}
	var senders sync.WaitGroup
	for n := range 12 {
		senders.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 1))
			for {
				i := int(next.Add(1)) - 1
				if i >= count || ctx.Err() != nil {
					return
				}
				if reached := marks[i]; reached != nil {
					close(reached)
				}
				d, id := bodies[i%len(bodies)], fmt.Sprintf("delivery-%d", i)
				a := deliver(ctx, t, s, c.Nodes(), i, id, d, &repeats)
				messages[i] = a.MessageID
				if r.IntN(20) == 0 { // some are sent again although they were taken
					again := deliver(ctx, t, s, c.Nodes(), i+1, id, d, &repeats)
					if twice.Add(1); !again.Duplicate || again.MessageID != a.MessageID {
						t.Errorf("%s again: %+v, first %+v", id, again, a)
					}
				}
			}
		})
	}
	q := c.Client()
	within(t, ctx, "the stuck worker has leased something", func() bool {
		v, err := q.Queue(ctx, "hooks")
		return err == nil && v.Stats.InFlight > 0
	})
	workers = append(workers, p.start(t, c), p.start(t, c))
	<-third
	workers[0].kill()
	workers[0] = p.start(t, c)
	<-half
	leader := c.WaitLeader()
	leader.Kill9()
	<-most
	leader.Restart()
	senders.Wait()
	sent := time.Since(begun)
	within(t, ctx, "all processed", func() bool { return p.count() >= count })
	took := time.Since(begun)

	// What was processed last is acked by then.
	within(t, ctx, "all acked", func() bool {
		v, err := q.Queue(ctx, "hooks")
		return err == nil && v.Stats.AckedTotal >= int64(count)
	})
	v, err := q.Queue(ctx, "hooks")
	require.NoError(t, err)
	if s := v.Stats; s.EnqueuedTotal != int64(count) || s.AckedTotal != int64(count) ||
		s.Depth+s.InFlight+s.Scheduled != 0 {
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
		require.NoError(t, json.Unmarshal(p.last[id].Payload, &got))
		if want := mapped(t, d, id); !reflect.DeepEqual(got, want) || p.last[id].Kind != d.event {
			t.Errorf("%s: %v of kind %s, want %v", id, got, p.last[id].Kind, want)
		}
	}
	assert.Equal(t, len(p.ids), count, "deliveries were processed")
	assert.NotEqual(t, p.later, 0, "nothing of what the killed worker had was processed again")
	t.Logf("figures: %d webhooks through 3 nodes: taken in %s, processed in %s; %d tries repeated while "+
		"the leader was away, "+
		"%d sent twice; %d were processed at a later attempt, %d of these for the second time",
		count, sent.Round(time.Millisecond), took.Round(time.Millisecond), repeats.Load(),
		twice.Load(), p.later, p.lines-count)
	p.mu.Unlock()

	original(t, c, bodies[0], messages[0])
	for _, w := range workers {
		w.end(t)
	}
	nowhereBut(t, c, secret, "delivery-0")
}

// original looks whether the body is kept beside what was made of it, and the
// signature nowhere.
func original(t *testing.T, c *cluster.Cluster, d delivery, id string) {
	t.Helper()
	status, text, err := c.Follower().Get(t.Context(), "/v1/messages/"+id)
	require.True(t, err == nil && status == http.StatusOK, "%d %v %s", status, err, text)
	var m struct {
		Original json.RawMessage
		Headers  map[string]string
	}
	require.NoError(t, json.Unmarshal(text, &m))
	var got, want any
	assert.True(t, json.Unmarshal(m.Original, &got) == nil &&
		json.Unmarshal(d.body, &want) == nil && reflect.DeepEqual(got, want),
		"the original is %.200s", m.Original)
	assert.True(t, m.Headers["webhook"] == "github" && m.Headers["x-github-event"] == d.event &&
		m.Headers["x-hub-signature-256"] == "", "headers %v", m.Headers)
}
