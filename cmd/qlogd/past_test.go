package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
)

// pastWorld is a node at work, and what was seen of it live.
type pastWorld struct {
	t     *testing.T
	n     *node
	c     *client.Client
	rng   *rand.Rand
	held  []wire.LeasedMessage
	acked []string
	seen  []sighting
	count map[string]int // of what was done
}

// sighting is what a live node told, and the instants at which that was so.
type sighting struct {
	index    uint64
	id       event.ID // the last event of the entry at index; zero if it had none
	from, to int64    // the log's clock when the first and the last question was asked
	answers  map[string]any
}

// quietMS is how long nothing must happen where an instant is named by how long
// ago it was: asking takes a while.
const quietMS = 40

// get asks the node for a path and returns the JSON without what is of the very
// moment: ages and rates.
func (w *pastWorld) get(path string, query url.Values) any {
	w.t.Helper()
	r, err := http.Get("http://" + w.n.httpLis.Addr().String() + path + "?" + query.Encode())
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if r.StatusCode == http.StatusNotFound {
		return nil // the queue is not there
	}
	if r.StatusCode != http.StatusOK {
		w.t.Fatalf("%s?%s: %s", path, query.Encode(), b)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		w.t.Fatal(err)
	}
	timeless(v)
	return v
}

func timeless(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "messages_per_minute")
		delete(v, "oldest_message_age_seconds")
		for _, x := range v {
			timeless(x)
		}
	case []any:
		for _, x := range v {
			timeless(x)
		}
	}
}

var pastQueues = []string{"keyed", "keyed.dlq", "plain", "fleeting"}

// all asks for everything that at= can tell.
func (w *pastWorld) all(query url.Values) map[string]any {
	w.t.Helper()
	out := map[string]any{"/v1/queues": w.get("/v1/queues", query)}
	for _, q := range pastQueues {
		for _, path := range []string{"/v1/queues/" + q, "/v1/queues/" + q + "/messages"} {
			out[path] = w.get(path, query)
		}
	}
	return out
}

// look notes what the node tells, if nothing happened meanwhile. quiet is how
// long nothing is to happen while it looks.
func (w *pastWorld) look(quiet time.Duration) {
	w.t.Helper()
	clock := w.n.engine().replica.Clock
	s := sighting{index: w.n.engine().log.Head(), from: clock()}
	s.answers = w.all(nil)
	time.Sleep(quiet)
	s.to = clock()
	if w.n.engine().log.Head() != s.index {
		return
	}
	if b, err := w.n.engine().log.Block(s.index); err == nil && len(b.Events) > 0 {
		s.id = b.Events[len(b.Events)-1].ID
	}
	w.seen = append(w.seen, s)
}

func (w *pastWorld) propose(c *event.Command) event.Result {
	w.t.Helper()
	r, err := w.n.engine().replica.Propose(w.t.Context(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// step does one thing that a client, a worker or an operator may do.
func (w *pastWorld) step() {
	w.t.Helper()
	ctx, queue := w.t.Context(), pastQueues[w.rng.IntN(len(pastQueues))]
	switch n := w.rng.IntN(20); {
	case n < 7:
		m := client.JSON(w.rng.IntN(1000))
		m.Key = fmt.Sprint("k", w.rng.IntN(3))
		if w.rng.IntN(4) == 0 {
			m.DelayMS = int64(50 + w.rng.IntN(1500))
		}
		if _, err := w.c.Produce(ctx, queue, m, client.JSON("x")); err == nil {
			w.count["produced"]++
		}
	case n < 11:
		got, err := w.c.Lease(ctx, queue, client.LeaseOptions{Max: 2})
		if err == nil && w.rng.IntN(3) > 0 { // else the worker goes silent
			w.held = append(w.held, got...)
		}
	case n < 16 && len(w.held) > 0:
		m := w.held[0]
		w.held = w.held[1:]
		var err error
		switch w.rng.IntN(4) {
		case 0:
			if _, err = w.c.AckOne(ctx, m.LeaseID, wire.AckOne{}); err == nil {
				w.acked = append(w.acked, m.ID)
			}
		case 1:
			_, err = w.c.RetryOne(ctx, m.LeaseID, wire.RetryOne{Error: "again"})
		default:
			_, err = w.c.DeadLetterOne(ctx, m.LeaseID, wire.DeadLetterOne{Error: "no"})
		}
		if err == nil {
			w.count["settled"]++
		}
	case n < 18:
		dead, _ := w.n.engine().machine.Dead("keyed", event.DeadFilter{Limit: 1 + w.rng.IntN(3)})
		replay, purge := &event.Replay{Queue: "keyed", Order: event.Order(w.rng.IntN(4))}, &event.PurgeDead{Queue: "keyed"}
		for i := range dead {
			item := event.ReplayItem{ID: dead[i].ID}
			if i == 0 {
				item.Edited, item.Size, item.Content = true, 8, event.EncodeContent(&event.Content{Payload: []byte(`"edited"`)})
			}
			replay.Items, purge.IDs = append(replay.Items, item), append(purge.IDs, dead[i].ID)
		}
		switch {
		case len(dead) == 0:
		case w.rng.IntN(4) == 0:
			w.count["purged"] += int(w.propose(&event.Command{PurgeDead: purge}).Count)
		default:
			w.count["replayed"] += int(w.propose(&event.Command{Replay: replay}).Count)
		}
	case n == 18 && len(w.acked) > 0 && w.rng.IntN(2) == 0:
		r, err := http.Post("http://"+w.n.httpLis.Addr().String()+"/v1/messages/"+w.acked[w.rng.IntN(len(w.acked))]+"/resurrect", "application/json", nil)
		if err != nil {
			w.t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode == http.StatusCreated { // else it lives already, or its queue is gone
			w.count["resurrected"]++
		}
	case n == 18:
		switch w.rng.IntN(4) {
		case 0:
			must[int64](w.t)(w.c.PurgeQueue(ctx, "plain"))
		case 1:
			if w.rng.IntN(2) > 0 {
				break
			}
			if err := w.c.DeleteQueue(ctx, "fleeting", true); err == nil {
				w.count["deleted"]++
			}
		case 2:
			_ = w.c.PauseQueue(ctx, "plain")
		case 3:
			_ = w.c.ResumeQueue(ctx, "plain")
		}
	default:
		w.policies()
	}
}

func (w *pastWorld) policies() {
	w.t.Helper()
	for queue, policy := range map[string]string{
		"keyed":    `{"ordering":"per_key","delivery":{"dead_letter_queue":"auto","on_dead":"hold_key","lease_ms":300,"max_attempts":2,"initial_backoff_ms":100}}`,
		"plain":    `{"delivery":{"lease_ms":200,"max_attempts":2,"initial_backoff_ms":300}}`,
		"fleeting": `{"retention":{"max_age_seconds":1}}`,
	} {
		var u wire.PolicyUpdate
		if err := wire.Decode([]byte(policy), &u); err != nil {
			w.t.Fatal(err)
		}
		if _, _, err := w.c.PutQueue(w.t.Context(), queue, u); err != nil {
			w.t.Fatal(err)
		}
	}
}

// compare asks for a sighting again, by an instant of its.
func (w *pastWorld) compare(s *sighting, kind int) bool {
	w.t.Helper()
	at := fmt.Sprintf("index:%d", s.index)
	e := w.n.engine()
	switch kind {
	case 1:
		if s.id.IsZero() {
			return false
		}
		at = s.id.String()
	case 2, 3:
		// A time is the state's if the entry before it is the one that was seen,
		// and nothing had come due of which the node had not told yet.
		when := s.from + (s.to-s.from)/2
		if i, err := e.log.To(event.Instant{Kind: event.InstantTime, Time: when}); err != nil || !w.nothingBetween(s.index, i) || w.dueBy(s, s.to) {
			return false
		}
		at = time.UnixMilli(when).UTC().Format("2006-01-02T15:04:05.000Z")
		if kind == 3 { // a duration before now, which goes on while it is asked
			if s.to-s.from < quietMS {
				return false
			}
			return w.same(s, func() string { return fmt.Sprintf("%dms", e.replica.Clock()-when) }, s.to-when)
		}
	}
	return w.same(s, func() string { return at }, 0)
}

// same asks, each time with the instant as it is called then. patience is how
// long an answer may take before it is of no use, 0 for ever.
func (w *pastWorld) same(s *sighting, at func() string, patience int64) bool {
	w.t.Helper()
	for path, want := range s.answers {
		name, asked := at(), w.n.engine().replica.Clock()
		got := w.get(path, url.Values{"at": {name}})
		if patience > 0 && w.n.engine().replica.Clock()-asked >= patience {
			return false
		}
		if d := cmp.Diff(want, got); d != "" {
			w.t.Errorf("%s?at=%s (index %d): live (-) and past (+) differ:\n%s", path, name, s.index, d)
			return true
		}
	}
	return true
}

// nothingBetween reports whether no block lies behind index up to to.
func (w *pastWorld) nothingBetween(index, to uint64) bool {
	if to < index {
		return false
	}
	for b, err := range w.n.engine().log.Follow(index + 1) {
		return err != nil || b.Index > to
	}
	return true
}

// dueBy reports whether something that was told as scheduled had come due by a
// time: the node tells so with its next entry only.
func (w *pastWorld) dueBy(s *sighting, when int64) bool {
	due := false
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if text, ok := v["available_at"].(string); ok {
				at, err := time.Parse(time.RFC3339, text)
				due = due || err != nil || at.UnixMilli() <= when
			}
			for _, x := range v {
				look(x)
			}
		case []any:
			for _, x := range v {
				look(x)
			}
		}
	}
	for _, a := range s.answers {
		look(a)
	}
	return due
}

// TestAtEqualsWhatWasSeen: at= of queues, one queue and its messages at 100
// random instants, however they are named, is what the node told then; also
// after a restart.
func TestAtEqualsWhatWasSeen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	args := []string{"--checkpoint-entries", "40", "--log-segment-bytes", "65536"}
	n, c := testNode(t, dir, args...)
	w := &pastWorld{t: t, n: n, c: c, rng: rand.New(rand.NewPCG(7, 7)), count: map[string]int{}}
	w.policies()
	for i := range 500 {
		w.step()
		switch {
		case i%6 == 5:
			w.look(quietMS * time.Millisecond)
		case i%2 == 0:
			w.look(0)
		}
	}
	var expired int
	for b, err := range n.engine().log.Follow(0) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Type == event.LeaseExpired || e.Reason == event.ReasonExpired {
				expired++
			}
		}
	}
	if w.count["replayed"] == 0 || w.count["purged"] == 0 || w.count["deleted"] == 0 || w.count["resurrected"] == 0 || expired == 0 || len(w.seen) < 100 {
		t.Fatalf("too little happened: %v, %d expired, %d seen", w.count, expired, len(w.seen))
	}
	for round := range 2 {
		kinds := map[int]int{}
		for asked, tries := 0, 0; asked < 100; tries++ {
			if tries > 10_000 {
				t.Fatalf("only %v could be asked for", kinds)
			}
			kind := w.rng.IntN(4)
			if w.compare(&w.seen[w.rng.IntN(len(w.seen))], kind) {
				kinds[kind]++
				asked++
			}
			if t.Failed() {
				stopNode(t, w.n)
				t.FailNow()
			}
		}
		if len(kinds) < 3 { // on a machine that is busy no duration may be asked for in time
			t.Errorf("only these kinds of instants could be asked for: %v", kinds)
		}
		t.Logf("round %d: %v of %d sightings; %v", round, kinds, len(w.seen), w.count)
		stopNode(t, w.n)
		if round == 0 {
			w.n, w.c = testNode(t, dir, args...)
		}
	}
}
