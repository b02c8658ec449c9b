package cluster_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// eraser writes messages whose every piece of text can be found on a disk.
type eraser struct {
	t       *testing.T
	ctx     context.Context
	c       *cluster.Cluster
	cl      *client.Client
	queue   string
	archive string
	// gone and stay are what is erased and what is not, by what it was.
	gone, stay map[string]string
}

// erasing starts a cluster whose history is archived.
func erasing(t *testing.T) *eraser {
	e := &eraser{t: t, archive: t.TempDir(), gone: map[string]string{}, stay: map[string]string{}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	e.ctx = ctx
	e.c = cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: []string{
		"--log-segment-bytes", "65536", "--archive", e.archive, "--archive-interval", "100ms",
		"--checkpoint-entries", "100",
	}})
	e.cl = e.c.Client()
	e.use("jobs")
	return e
}

// use has the following messages in a queue.
func (e *eraser) use(name string) {
	e.t.Helper()
	e.queue = name
	queue(e.t, e.cl, name, `{"ordering":"per_key",
		"delivery":{"max_attempts":2,"initial_backoff_ms":0,"dead_letter_queue":"auto"}}`)
}

// mark returns a text that is nowhere else.
func (e *eraser) mark(in map[string]string, what string) string {
	m := what + "-" + rand.Text()
	in[m] = m
	return m
}

func (e *eraser) must(err error) {
	e.t.Helper()
	require.NoError(e.t, err)
}

func (e *eraser) produce(key string, in map[string]string) string {
	e.t.Helper()
	m := client.JSON(e.mark(in, "payload"))
	m.Key, m.Headers = key, map[string]string{"h": e.mark(in, "header")}
	got, err := e.cl.Produce(e.ctx, e.queue, m)
	e.must(err)
	return got[0].ID
}

// lease leases the one message that there is.
func (e *eraser) lease() string {
	e.t.Helper()
	got, err := e.cl.Lease(e.ctx, e.queue, client.LeaseOptions{Max: 1, Wait: 30 * time.Second})
	require.True(e.t, err == nil && len(got) == 1, "leased %v, %v", got, err)
	return got[0].LeaseID
}

// die lets the next message fail twice.
func (e *eraser) die(in map[string]string) {
	e.t.Helper()
	for range 2 {
		_, err := e.cl.Retry(e.ctx, e.queue,
			[]wire.RetryItem{{LeaseID: e.lease(), Error: e.mark(in, "error")}})
		e.must(err)
	}
}

func (e *eraser) ack(in map[string]string) {
	e.t.Helper()
	_, err := e.cl.AckOne(e.ctx, e.lease(),
		wire.AckOne{Result: client.JSON(e.mark(in, "result")).Payload})
	e.must(err)
}

// replay replays a message by an id that it had, with an edit unless in is nil.
func (e *eraser) replay(id string, in map[string]string) {
	e.t.Helper()
	r := wire.ReplayRequest{MessageIDs: []string{id}}
	if in != nil {
		r.Edit = map[string]wire.ReplayEdit{id: {Payload: client.JSON(e.mark(in, "edit")).Payload}}
	}
	_, _, err := e.cl.Replay(e.ctx, e.queue, r)
	e.must(err)
}

// whole is the life of a message with everything in it. It returns its first id.
func (e *eraser) whole(key string, in map[string]string) string {
	e.t.Helper()
	id := e.produce(key, in)
	e.die(in)
	e.replay(id, in)
	e.die(in)
	e.replay(id, nil)
	e.ack(in)
	return id
}

// hooked is a message that keeps the body that it was made of.
func (e *eraser) hooked(key string, in map[string]string) string {
	e.t.Helper()
	_, _, err := e.cl.PutWebhook(e.ctx, "in", wire.WebhookDefinition{
		Queue: e.queue, Key: "payload.key",
		MapTo: &wire.MapTo{Input: map[string]string{"n": "payload.n"}},
	})
	e.must(err)
	body := fmt.Appendf(nil, `{"key":%q,"n":1,"left_out":%q}`, key, e.mark(in, "original"))
	got, err := hookSender{header: "X-None"}.send(e.ctx, e.c.WaitLeader(), "in", body)
	e.must(err)
	return got.MessageID
}

// thereBefore checks that the search can fail: each text is in the event log and
// in the Raft log of each node.
func (e *eraser) thereBefore() {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		// A follower learns of the last entries with the next ones.
		cluster.Until(e.t, func() error {
			found := filesWith(e.t, n.Dir(), e.gone)
			for what := range e.gone {
				for _, dir := range []string{"log/", "raft/"} {
					if !slices.ContainsFunc(found[what],
						func(f string) bool { return strings.HasPrefix(f, dir) }) {
						return fmt.Errorf("%s: %s is not in %s before it is erased: %v", n.Name(),
							what, dir, found[what])
					}
				}
			}
			return nil
		})
	}
}

// nowhere checks that nothing of what is erased is in any file, and that the rest
// is.
func (e *eraser) nowhere() {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		for what, in := range filesWith(e.t, n.Dir(), e.gone) {
			e.t.Errorf("%s: %s is still in %v", n.Name(), what, in)
		}
		if found := filesWith(e.t, n.Dir(), e.stay); len(found) != len(e.stay) {
			e.t.Errorf("%s: of %d texts of others %d are left", n.Name(), len(e.stay), len(found))
		}
	}
	for what, in := range filesWith(e.t, e.archive, e.gone) {
		e.t.Errorf("archive: %s is still in %v", what, in)
	}
}

// erase starts the erasure of a key.
func (e *eraser) erase(key, reason string) string {
	e.t.Helper()
	_, task, err := e.cl.EraseKey(e.ctx, e.queue, wire.EraseKeyRequest{Key: key, Reason: reason})
	require.True(e.t, err == nil && task != nil && task.Type == "erase", "%+v %v", task, err)
	return task.ID
}

// completed waits for a task, which all nodes must have carried out.
func (e *eraser) completed(id string, nodes int) {
	e.t.Helper()
	task, err := e.cl.WaitTask(e.ctx, id)
	require.True(e.t, err == nil && task.Status == wire.TaskCompleted && len(task.Nodes) == nodes,
		"%+v %v", task, err)
	for _, n := range task.Nodes {
		assert.True(e.t, n.Complete && n.At != 0, "node %+v", n)
	}
}

// verified checks that qlogd replay --verify accepts each directory and counts
// what was erased.
func (e *eraser) verified() {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		text, err := n.Run("replay", "--verify", "--data-dir", n.Dir(), "--output", "json")
		var out struct {
			Verify struct{ Erased int }
		}
		jerr := json.Unmarshal([]byte(lastLine(string(text))), &out)
		if err != nil || jerr != nil || out.Verify.Erased < len(e.gone)/2 {
			e.t.Errorf("%s: replay --verify: %v, %v\n%s", n.Name(), err, jerr, text)
		}
	}
}

// shown checks how each node shows a message that was erased.
func (e *eraser) shown(id, reason string) {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		m, err := n.Client().Message(e.ctx, id)
		if err != nil || !m.Erased || string(m.Payload) != "null" && len(m.Payload) > 0 {
			e.t.Errorf("%s: %+v %v", n.Name(), m, err)
			continue
		}
		erased := false
		for _, ev := range m.History {
			erased = erased || ev.Type == "erased" && ev.Reason == reason
			if ev.Type == "enqueued" && !ev.Erased {
				e.t.Errorf("%s: %+v", n.Name(), ev)
			}
		}
		assert.True(e.t, erased,
			"%s: the history does not say that it was erased: %+v", n.Name(), m.History)
	}
}

// TestErase: a message with everything that users can write in it, and all
// messages of a key, are erased on three nodes and in the archive: no byte of it
// is left in any file, and the rest is as it was. The tasks are not complete before
// a node that was away has done it too, and go on when the leader dies.
//
//	ERASE_KILLS: how many nodes die in the second erasure
func TestErase(t *testing.T) {
	t.Parallel()
	e := erasing(t)
	one := e.whole("k1", e.gone)
	e.whole("other", e.stay)
	// Of a key: acked, dead, replayed, waiting; and one from a webhook.
	of := []string{e.whole("victim", e.gone), e.produce("victim", e.gone)}
	e.die(e.gone)
	of = append(of, e.hooked("victim", e.gone), e.produce("victim", e.gone))
	e.produce("other", e.stay)
	e.thereBefore()
	// So much that all that was written before is archived.
	queue(t, e.cl, "noise", "")
	for range 3 {
		_, err := e.cl.Produce(e.ctx, "noise", payloads(mrand.New(mrand.NewPCG(1, 5)), 100)...)
		e.must(err)
	}
	cluster.Until(t, func() error {
		if found := filesWith(t, e.archive, e.gone); len(found) < len(e.gone) {
			return fmt.Errorf("%d of %d texts were archived", len(found), len(e.gone))
		}
		return nil
	})

	would, _, err := e.cl.EraseMessage(e.ctx, one, wire.EraseRequest{DryRun: true})
	assert.True(t, err == nil && would.Messages == 1 && would.Live == 0 && would.Contents == 7,
		"dry run: %+v %v", would, err)
	would, _, err = e.cl.EraseKey(e.ctx, "jobs", wire.EraseKeyRequest{Key: "victim", DryRun: true})
	assert.True(t, err == nil && would.Messages == 4 && would.Live == 3,
		"dry run: %+v %v", would, err)
	away := e.c.Follower()
	away.Kill9()
	_, first, err := e.cl.EraseMessage(e.ctx, one, wire.EraseRequest{Reason: "request 4711"})
	e.must(err)
	tasks := []string{first.ID, e.erase("victim", "request 4712")}
	for _, task := range tasks {
		e.completedBut(task, away)
	}
	for _, n := range e.c.Nodes() {
		if found := filesWith(t, n.Dir(), e.gone); n != away && len(found) > 0 || n == away &&
			len(found) != len(e.gone) {
			t.Errorf("%s, where %s is away: %v", n.Name(), away.Name(), found)
		}
	}
	leader := e.c.WaitLeader()
	away.Launch()
	leader.Kill9()
	e.c.WaitLeader(leader)
	leader.Restart()
	for _, task := range tasks {
		e.completed(task, 3)
	}
	e.nowhere()
	e.verified()
	e.shown(one, "request 4711")
	for _, id := range of {
		e.shown(id, "request 4712")
	}
	// What is new is not touched, nor is what was of others.
	e.ack(e.stay)
	after := map[string]string{}
	e.produce("victim", after)
	if found := filesWith(t, e.c.WaitLeader().Dir(), after); len(found) != 2 {
		t.Errorf("a message that came after: %v", found)
	}
	e.whileNodesComeAndGo()
}

// completedBut waits until the nodes but one that is away have carried out a task.
func (e *eraser) completedBut(task string, away *cluster.Node) {
	e.t.Helper()
	cluster.Until(e.t, func() error {
		now, err := e.cl.Task(e.ctx, task)
		if err != nil {
			return err
		}
		done := 0
		for _, n := range now.Nodes {
			if n.Complete {
				done++
			}
			assert.False(e.t, n.Complete && n.Node == away.Name(),
				"the node that is away is complete")
		}
		if now.Status != wire.TaskRunning || done != 2 || len(now.Nodes) != 3 {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
}

// whileNodesComeAndGo erases while nodes die; one that is wiped and fetches what
// it lacks, perhaps from one that has not erased yet, has nothing in the end, nor
// has one that is new.
func (e *eraser) whileNodesComeAndGo() {
	before := e.gone
	e.gone = map[string]string{}
	e.use("more")
	for range 5 {
		e.whole("second", e.gone)
	}
	e.thereBefore()
	task := e.erase("second", "request 4713")
	kills := cluster.Number(e.t, "ERASE_KILLS", 2)
	for i := range kills {
		n := e.c.WaitLeader()
		if i%2 == 1 {
			n = e.c.Follower()
		}
		n.Kill9()
		n.Restart()
	}
	wiped := e.c.Follower()
	wiped.Kill9()
	wiped.Wipe()
	wiped.Launch()
	e.c.Add("--join", strings.Join(e.c.Join(), ",")).Launch()
	e.c.WaitReady()
	e.c.WaitVoters()
	_, err := e.cl.WaitTask(e.ctx, task)
	e.must(err)
	maps.Copy(e.gone, before)
	// a node that came after the end erases all the same
	cluster.Until(e.t, func() error {
		var left error
		for _, n := range e.c.Nodes() {
			for what, in := range filesWith(e.t, n.Dir(), e.gone) {
				left = errors.Join(left, fmt.Errorf("%s: %s is in %v", n.Name(), what, in))
			}
		}
		return left
	})
	e.nowhere()
	e.verified()
	e.t.Logf("figures: %d texts erased and found nowhere, %d kills meanwhile", len(e.gone), kills)
}
