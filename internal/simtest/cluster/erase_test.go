package cluster_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// eraser tells stories whose every piece of text can be found on a disk.
type eraser struct {
	t       *testing.T
	c       *cluster.Cluster
	archive string
	// gone and stay are what is to be erased and what is not, by what it was.
	gone, stay map[string]string
}

// erasing starts a cluster whose history is archived.
func erasing(t *testing.T, nodes int, flags ...string) *eraser {
	e := &eraser{t: t, archive: t.TempDir(), gone: map[string]string{}, stay: map[string]string{}}
	e.c = cluster.StartCluster(t, cluster.Options{Nodes: nodes, Flags: append([]string{
		"--log-segment-bytes", "65536", "--archive", e.archive, "--archive-interval", "100ms",
	}, flags...)})
	queue(t, e.c.Client(), "jobs", `{"ordering":"per_key","delivery":{"max_attempts":2,"initial_backoff_ms":0,"dead_letter_queue":"auto"}}`)
	return e
}

// mark makes a text that is nowhere else.
func (e *eraser) mark(in map[string]string, what string) string {
	m := what + "-" + rand.Text()
	in[what+"-"+fmt.Sprint(len(in))] = m
	return m
}

// do asks a node and wants a status.
func (e *eraser) do(n *cluster.Node, want int, method, path, body string, out any) {
	e.t.Helper()
	status, b, err := n.Do(e.t.Context(), method, path, strings.NewReader(body))
	if err != nil {
		e.t.Fatalf("%s %s: %v", method, path, err)
	}
	if status != want {
		e.t.Fatalf("%s %s: %d %s", method, path, status, b)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			e.t.Fatalf("%s %s: %v in %s", method, path, err, b)
		}
	}
}

// up is a node that runs.
func (e *eraser) up() *cluster.Node {
	for _, n := range e.c.Nodes() {
		if n.Running() {
			return n
		}
	}
	e.t.Fatal("none runs")
	return nil
}

func (e *eraser) produce(key string, in map[string]string) string {
	e.t.Helper()
	var out struct{ Messages []struct{ ID string } }
	e.do(e.up(), 201, "POST", "/v1/queues/jobs/messages", fmt.Sprintf(`{"messages":[{"key":%q,"payload":{"text":%q},"headers":{"h":%q}}]}`,
		key, e.mark(in, "payload"), e.mark(in, "header")), &out)
	return out.Messages[0].ID
}

// lease leases the one message that there is.
func (e *eraser) lease() (id, lease string) {
	e.t.Helper()
	var out struct {
		Messages []struct {
			ID    string
			Lease string `json:"lease_id"`
		}
	}
	e.do(e.up(), 200, "POST", "/v1/queues/jobs/lease", `{"max_messages":1,"wait_ms":5000}`, &out)
	if len(out.Messages) != 1 {
		e.t.Fatalf("leased %+v", out)
	}
	return out.Messages[0].ID, out.Messages[0].Lease
}

// die lets the message that is next fail twice.
func (e *eraser) die(in map[string]string) {
	e.t.Helper()
	for range 2 {
		_, lease := e.lease()
		e.do(e.up(), 200, "POST", "/v1/queues/jobs/retry", fmt.Sprintf(`{"items":[{"lease_id":%q,"error":%q,"delay_ms":0}]}`, lease, e.mark(in, "error")), nil)
	}
}

func (e *eraser) ack(in map[string]string) {
	e.t.Helper()
	_, lease := e.lease()
	e.do(e.up(), 200, "POST", "/v1/leases/"+lease+"/ack", fmt.Sprintf(`{"result":{"r":%q}}`, e.mark(in, "result")), nil)
}

// replay replays a message by an id that it had, with an edit.
func (e *eraser) replay(id string, in map[string]string) string {
	e.t.Helper()
	body, edit := fmt.Sprintf(`{"message_ids":[%q]}`, id), ""
	if in != nil {
		edit = fmt.Sprintf(`,"edit":{%q:{"payload":{"text":%q}}}`, id, e.mark(in, "edit"))
		body = fmt.Sprintf(`{"message_ids":[%q]%s}`, id, edit)
	}
	var out struct {
		Messages []struct {
			New string `json:"new_message_id"`
		}
	}
	e.do(e.up(), 200, "POST", "/v1/queues/jobs/dead/replay", body, &out)
	return out.Messages[0].New
}

// whole is the life of a message with everything in it. It returns its first id.
func (e *eraser) whole(key string, in map[string]string) string {
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
	status, b, err := e.up().Do(e.t.Context(), "PUT", "/v1/webhooks/in", strings.NewReader(`{"queue":"jobs","key":"payload.key","map_to":{"input":{"n":"payload.n"}}}`))
	if err != nil || status != 201 && status != 200 {
		e.t.Fatalf("%d %s %v", status, b, err)
	}
	var out struct {
		ID string `json:"message_id"`
	}
	e.do(e.up(), 202, "POST", "/hook/in", fmt.Sprintf(`{"key":%q,"n":1,"left_out":%q}`, key, e.mark(in, "original")), &out)
	return out.ID
}

// files returns in which files of a folder each of the texts is.
func (e *eraser) files(dir string, marks map[string]string) map[string][]string {
	e.t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a live node's
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		for what, m := range marks {
			if bytes.Contains(b, []byte(m)) {
				found[what] = append(found[what], rel)
			}
		}
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return found
}

// thereBefore checks that the search can fail: each text is found, in the event
// log of each node that runs, and in its Raft log.
func (e *eraser) thereBefore() {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		if !n.Running() {
			continue
		}
		// A follower learns of the last entries with the next ones.
		end := time.Now().Add(10 * time.Second)
		for {
			found := e.files(n.Dir(), e.gone)
			missing := ""
			for what := range e.gone {
				for _, dir := range []string{"log", "raft"} {
					if !slices.ContainsFunc(found[what], func(f string) bool { return strings.HasPrefix(f, dir+"/") }) {
						missing = fmt.Sprintf("%s: %s is not in %s/ before it is erased: %v", n.Name(), what, dir, found[what])
					}
				}
			}
			if missing == "" {
				break
			}
			if time.Now().After(end) {
				e.t.Fatal(missing)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// nowhere checks that nothing of what is to be gone is in any file, and that the
// rest is.
func (e *eraser) nowhere() {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		for what, in := range e.files(n.Dir(), e.gone) {
			e.t.Errorf("%s: %s is still in %v", n.Name(), what, in)
		}
		if found := e.files(n.Dir(), e.stay); len(found) != len(e.stay) {
			e.t.Errorf("%s: of %d texts of others %d are left", n.Name(), len(e.stay), len(found))
		}
	}
	for what, in := range e.files(e.archive, e.gone) {
		e.t.Errorf("archive: %s is still in %v", what, in)
	}
}

// archived writes so much that all that was written before is archived, and
// checks that.
func (e *eraser) archived() {
	e.t.Helper()
	queue(e.t, e.c.Client(), "noise", "")
	fill(e.t, e.c.Client(), "noise", 3000)
	end := time.Now().Add(20 * time.Second)
	for {
		found := e.files(e.archive, e.gone)
		if len(found) == len(e.gone) {
			return
		}
		if time.Now().After(end) {
			e.t.Fatalf("%d of %d texts were archived", len(found), len(e.gone))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

type eraseTask struct {
	ID     string
	Type   string
	Status string
	Done   int
	Nodes  []struct {
		Node     string
		Complete bool
		At       *string
	}
}

func (e *eraser) begin(path, body string) eraseTask {
	e.t.Helper()
	var task eraseTask
	e.do(e.up(), http.StatusAccepted, "POST", path, body, &task)
	if task.Type != "erase" || task.ID == "" {
		e.t.Fatalf("%+v", task)
	}
	return task
}

// completed waits for a task.
func (e *eraser) completed(id string) eraseTask {
	e.t.Helper()
	end := time.Now().Add(60 * time.Second)
	for {
		var task eraseTask
		status, b, err := e.up().Do(e.t.Context(), "GET", "/v1/tasks/"+id+"?wait_ms=1000", nil)
		if err == nil && status == 200 {
			if err := json.Unmarshal(b, &task); err != nil {
				e.t.Fatal(err)
			}
			if task.Status == "completed" {
				for _, n := range task.Nodes {
					if !n.Complete || n.At == nil {
						e.t.Errorf("node %+v", n)
					}
				}
				return task
			}
		}
		if time.Now().After(end) {
			e.t.Fatalf("the task is not completed: %d %s %v", status, b, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// verified checks that qlogd replay --verify is content with each directory and
// tells of what was erased.
func (e *eraser) verified() {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		out, err := n.Run("replay", "--verify", "--data-dir", n.Dir(), "--output", "json")
		var told struct {
			Verify struct{ Erased int }
		}
		line := out
		if i := bytes.LastIndexByte(bytes.TrimSpace(out), '\n'); i > 0 {
			line = out[i:]
		}
		if jerr := json.Unmarshal(line, &told); err != nil || jerr != nil || told.Verify.Erased < len(e.gone)/2 {
			e.t.Errorf("%s: replay --verify: %v, %v\n%s", n.Name(), err, jerr, out)
		}
	}
}

// told checks what the API tells of a message that was erased.
func (e *eraser) told(id, reason string) {
	e.t.Helper()
	for _, n := range e.c.Nodes() {
		var m struct {
			Erased  bool
			Payload any
			History []struct {
				Type, Why string
				Erased    bool
			}
		}
		e.do(n, 200, "GET", "/v1/messages/"+id, "", &m)
		if !m.Erased || m.Payload != nil {
			e.t.Errorf("%s: %+v", n.Name(), m)
		}
		erased := 0
		for _, ev := range m.History {
			switch {
			case ev.Type == "erased" && ev.Why == reason:
				erased++
			case ev.Type == "enqueued" && !ev.Erased:
				e.t.Errorf("%s: %+v", n.Name(), ev)
			}
		}
		if erased == 0 {
			e.t.Errorf("%s: history does not say that it was erased: %+v", n.Name(), m.History)
		}
	}
}

// TestErase: a message with everything that users can write in it, and all
// messages of a key, are erased on three nodes and in the archive: no byte of it
// is left in any file, and the rest is as it was.
func TestErase(t *testing.T) {
	t.Parallel()
	e := erasing(t, 3)
	one := e.whole("k1", e.gone)
	e.whole("other", e.stay)
	// Of a key: acked, dead, replayed, waiting; and one from a webhook.
	var of []string
	of = append(of, e.whole("victim", e.gone))
	of = append(of, e.produce("victim", e.gone))
	e.die(e.gone)
	of = append(of, e.hooked("victim", e.gone), e.produce("victim", e.gone))
	e.produce("other", e.stay)
	e.thereBefore()
	e.archived()

	var dry struct {
		DryRun                   bool `json:"dry_run"`
		Messages, Live, Contents int
	}
	e.do(e.up(), 200, "POST", "/v1/messages/"+one+"/erase", `{"dry_run":true}`, &dry)
	if !dry.DryRun || dry.Messages != 1 || dry.Live != 0 || dry.Contents != 7 {
		t.Errorf("dry run: %+v", dry)
	}
	e.do(e.up(), 200, "POST", "/v1/queues/jobs/erase", `{"key":"victim","dry_run":true}`, &dry)
	if dry.Messages != 4 || dry.Live != 3 {
		t.Errorf("dry run: %+v", dry)
	}
	a := e.begin("/v1/messages/"+one+"/erase", `{"reason":"request 4711"}`)
	b := e.begin("/v1/queues/jobs/erase", `{"key":"victim","reason":"request 4712"}`)
	for _, task := range []string{a.ID, b.ID} {
		if done := e.completed(task); len(done.Nodes) != 3 {
			t.Errorf("%+v", done)
		}
	}
	e.nowhere()
	e.verified()
	e.told(one, "request 4711")
	for _, id := range of {
		e.told(id, "request 4712")
	}
	// What is new is not touched, nor is what was of others.
	e.ack(e.stay)
	after := map[string]string{}
	e.produce("victim", after)
	if found := e.files(e.up().Dir(), after); len(found) != 2 {
		t.Errorf("a message that came after: %v", found)
	}
}

// TestEraseWithANodeDown: the task is not complete before the node that was away
// has done it too; the leader dies meanwhile.
func TestEraseWithANodeDown(t *testing.T) {
	t.Parallel()
	e := erasing(t, 3)
	one := e.whole("k1", e.gone)
	e.whole("other", e.stay)
	e.thereBefore()
	e.archived()
	away := e.c.Follower()
	away.Kill9()
	if len(e.files(away.Dir(), e.gone)) != len(e.gone) {
		t.Fatal("the node that is away lacks some already")
	}
	task := e.begin("/v1/messages/"+one+"/erase", `{"reason":"request 4711"}`)
	// The others have done it soon.
	waitFor(t, func() string {
		var now eraseTask
		e.do(e.up(), 200, "GET", "/v1/tasks/"+task.ID, "", &now)
		done := 0
		for _, n := range now.Nodes {
			if n.Complete {
				done++
			}
			if n.Complete && n.Node == away.Name() {
				return "the node that is away is complete"
			}
		}
		if now.Status != "running" || done != 2 || len(now.Nodes) != 3 {
			return fmt.Sprintf("%+v", now)
		}
		return ""
	})
	for _, n := range e.c.Others(away) {
		if found := e.files(n.Dir(), e.gone); len(found) > 0 {
			t.Errorf("%s: still %v", n.Name(), found)
		}
	}
	leader := e.c.WaitLeader()
	away.Launch()
	leader.Kill9()
	e.c.WaitLeader(leader)
	leader.Launch()
	e.c.WaitReady()
	e.completed(task.ID)
	e.nowhere()
	e.verified()
	e.told(one, "request 4711")
}

// TestEraseGoesOn: nodes die in the middle, the leader among them, again and
// again.
func TestEraseGoesOn(t *testing.T) {
	t.Parallel()
	e := erasing(t, 3)
	for range 5 {
		e.whole("victim", e.gone)
	}
	e.whole("other", e.stay)
	e.thereBefore()
	e.archived()
	task := e.begin("/v1/queues/jobs/erase", `{"key":"victim","reason":"request 4711"}`)
	for i := range cluster.Number(t, "ERASE_KILLS", 2) {
		n := e.c.WaitLeader()
		if i%2 == 1 {
			n = e.c.Follower()
		}
		n.Kill9()
		time.Sleep(time.Duration(100*(i%4)) * time.Millisecond)
		n.Launch()
	}
	e.c.WaitReady()
	e.completed(task.ID)
	e.nowhere()
	e.verified()
}

// TestEraseOnNodesThatCome: a wiped node fetches what it lacks, perhaps from one
// that has not erased yet, and one is taken in; both have nothing in the end.
func TestEraseOnNodesThatCome(t *testing.T) {
	t.Parallel()
	e := erasing(t, 3, "--checkpoint-entries", "100")
	one := e.whole("k1", e.gone)
	e.whole("other", e.stay)
	e.thereBefore()
	e.archived()
	wiped := e.c.Follower()
	wiped.Kill9()
	task := e.begin("/v1/messages/"+one+"/erase", `{"reason":"request 4711"}`)
	wiped.Wipe()
	wiped.Launch()
	e.c.Add("--join", strings.Join(e.c.Join(), ",")).Launch()
	e.c.WaitReady()
	e.c.WaitVoters()
	e.completed(task.ID)
	waitFor(t, func() string { // one that came after the end does it all the same
		for _, n := range e.c.Nodes() {
			if found := e.files(n.Dir(), e.gone); len(found) > 0 {
				return fmt.Sprint(n.Name(), slices.Collect(maps.Values(found)))
			}
		}
		return ""
	})
	e.nowhere()
	e.verified()
}

// waitFor looks until look is content.
func waitFor(t *testing.T, look func() string) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		why := look()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
