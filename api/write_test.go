package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

const oneMessage = `{"messages":[{"payload":1}]}`

func TestTrackerIsBounded(t *testing.T) {
	tr := newTracker()
	for range keepOperations + 100 {
		tr.end(tr.begin("k", &event.Command{Produce: &event.Produce{}}), 1, nil)
	}
	if n := len(tr.find(operationKey{"", "k"})); n != keepOperations || len(tr.pending) != 0 {
		t.Errorf("%d kept, %d pending", n, len(tr.pending))
	}
}

func TestDeduplicationWindowIsBoundedByRetention(t *testing.T) {
	h := setup(t, func(o *Options) { o.HistoryRetention = 3600e9 })
	h.do("PUT", "/v1/queues/q", "").want(201).with("deduplication.window_seconds", 3600.0)
	h.do("PUT", "/v1/queues/q", `{"deduplication":{"window_seconds":86400}}`).want(400)
}

func TestErasedContent(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("POST", "/v1/queues/q/messages", oneMessage).want(201)
	h.log.erased = true
	if a := h.do("GET", "/v1/queues/q/messages", "").want(200); a.get("messages.0.erased") != true {
		t.Errorf("%s", a.Body)
	}
	if a := h.do("POST", "/v1/queues/q/lease", "").want(200); a.get("messages.0.erased") != true || a.get("messages.0.payload") != nil {
		t.Errorf("%s", a.Body)
	}
}

// life writes down what happened to a message, in words.
type lifeStory struct{ history []event.Event }

func storyID(i uint64) event.ID { return event.NewID(1000*int64(i), i, 0) }

// at adds an event with the id of this number, about another's.
func (l *lifeStory) at(i, subject uint64, e event.Event, c event.Content) {
	e.ID, e.Subject, e.Content = storyID(i), storyID(subject), event.EncodeContent(&c)
	l.history = append(l.history, e)
}

// TestLifeBroughtBack: a message that died, was replayed with an edit, acked,
// and then resurrected twice, once edited, is told under each of its ids by what
// it had there.
func TestLifeBroughtBack(t *testing.T) {
	h := setup(t)
	id := storyID
	var s lifeStory
	s.at(1, 1, event.Event{Type: event.Enqueued, Queue: "a", Key: "k", Kind: "x", Priority: 3, Size: 1, Actor: "producer"}, event.Content{Payload: []byte("1")})
	s.at(2, 1, event.Event{Type: event.Leased, Queue: "a", Attempt: 1, Worker: "w1"}, event.Content{})
	s.at(4, 1, event.Event{Type: event.LeaseExpired, Queue: "a", Lease: id(2), Attempt: 1}, event.Content{})
	s.at(5, 1, event.Event{Type: event.Leased, Queue: "a", Attempt: 2, Worker: "w2"}, event.Content{})
	s.at(8, 1, event.Event{Type: event.DeadLettered, Queue: "a", ToQueue: "a.dlq", Lease: id(5), Attempt: 2, Reason: event.ReasonMaxAttempts}, event.Content{Error: "boom"})
	s.at(10, 8, event.Event{Type: event.Replayed, Queue: "a.dlq", ToQueue: "a", DiedIn: "a", Order: event.OrderOriginal, Edited: true, Size: 2, Actor: "operator"}, event.Content{Payload: []byte("22")})
	s.at(11, 10, event.Event{Type: event.Leased, Queue: "a", Attempt: 1, Worker: "w3"}, event.Content{})
	s.at(12, 10, event.Event{Type: event.Acked, Queue: "a", Lease: id(11)}, event.Content{Result: []byte(`"ok"`)})
	s.at(13, 10, event.Event{Type: event.Resurrected, Queue: "a", ToQueue: "b", Key: "k2", Kind: "y", Priority: 7, Size: 3, Edited: true, First: id(1), Count: 1}, event.Content{Payload: []byte("333")})
	s.at(14, 13, event.Event{Type: event.Discarded, Queue: "b", Reason: event.ReasonDeleted}, event.Content{})
	s.at(15, 10, event.Event{Type: event.Resurrected, Queue: "a", ToQueue: "a", Key: "k", Kind: "x", Priority: 3, Size: 2, First: id(1), Count: 1}, event.Content{Payload: []byte("22")})
	s.at(16, 15, event.Event{Type: event.Leased, Queue: "a", Attempt: 1, Worker: "w4"}, event.Content{})
	s.at(17, 1, event.Event{Type: event.Erased, Refs: []event.Ref{event.RefOf(id(1))}, Actor: "officer"}, event.Content{Why: "asked for"})

	for _, x := range []struct {
		id                   uint64
		state, queue, key    string
		payload              string
		size, replays        int64
		from                 uint64 // 0: was not brought back
		attempt, resurrected int
		moved                uint64
	}{
		{id: 1, state: "dead_lettered", queue: "a", key: "k", payload: "1", size: 1, attempt: 2, moved: 8},
		{id: 8, state: "replayed", queue: "a.dlq", key: "k", payload: "1", size: 1, moved: 10},
		{id: 10, state: "acked", queue: "a", key: "k", payload: "22", size: 2, replays: 1, from: 8, attempt: 1, resurrected: 2},
		{id: 13, state: "discarded", queue: "b", key: "k2", payload: "333", size: 3, replays: 1, from: 10},
		{id: 15, state: "leased", queue: "a", key: "k", payload: "22", size: 2, replays: 1, from: 10, attempt: 1},
	} {
		l := lifeOf(s.history, id(x.id))
		if l == nil {
			t.Fatalf("%d: no life", x.id)
		}
		m, err := h.s.pastMessage(l)
		require.NoError(t, err)
		if m.State != x.state || m.Queue != x.queue || m.Key != x.key || string(m.Payload) != x.payload || m.Size != x.size ||
			int(m.Attempt) != x.attempt || len(m.ResurrectedAs) != x.resurrected {
			t.Errorf("%d: %+v", x.id, m)
		}
		if moved := m.MovedTo != nil; moved != (x.moved != 0) || moved && m.MovedTo.MessageID != id(x.moved).String() {
			t.Errorf("%d moved to %+v", x.id, m.MovedTo)
		}
		if back := m.Origin != nil; back != (x.from != 0) ||
			back && (m.Origin.FirstMessageID != id(1).String() || m.Origin.FromMessageID != id(x.from).String() || m.Origin.Replays != x.replays) {
			t.Errorf("%d came from %+v", x.id, m.Origin)
		}
	}
	if m, _ := h.s.pastMessage(lifeOf(s.history, id(8))); m.Dead == nil || m.Dead.Error != "boom" {
		t.Errorf("%+v", m)
	}
	if lifeOf(s.history, id(99)) != nil || lifeOf(s.history, id(2)) != nil {
		t.Error("a life of no message")
	}
	if e := EventOf(&s.history[4]); e.NewMessageID != id(8).String() || e.Error != "boom" ||
		e.MessageID != id(1).String() || e.LeaseID != id(5).String() {
		t.Errorf("%+v", e)
	}
	if m, _ := h.s.pastMessage(lifeOf(s.history, id(10))); string(m.Result) != `"ok"` || m.LeftAt != 12000 {
		t.Errorf("%+v", m)
	}
	got := attemptsOf(s.history)
	ms := func(n int64) *int64 { return &n }
	want := []wire.Attempt{
		{Attempt: 1, MessageID: id(1).String(), Queue: "a", LeaseID: id(2).String(), Worker: "w1", LeasedAt: 2000, EndedAt: 4000, DurationMS: ms(2000), Outcome: "lease_expired"},
		{Attempt: 2, MessageID: id(1).String(), Queue: "a", LeaseID: id(5).String(), Worker: "w2", LeasedAt: 5000, EndedAt: 8000, DurationMS: ms(3000), Outcome: "dead_lettered", Reason: "max_attempts", Error: "boom"},
		{Attempt: 1, MessageID: id(10).String(), Queue: "a", LeaseID: id(11).String(), Worker: "w3", LeasedAt: 11000, EndedAt: 12000, DurationMS: ms(1000), Outcome: "acked"},
		{Attempt: 1, MessageID: id(15).String(), Queue: "a", LeaseID: id(16).String(), Worker: "w4", LeasedAt: 16000, Outcome: "leased"},
	}
	assert.Equal(t, cmp.Diff(want, got), "")
	if e := EventOf(&s.history[5]); e.DiedIn != "a" || e.Order != "original" || !e.Edited || e.Actor != "operator" || e.NewMessageID != id(10).String() {
		t.Errorf("%+v", e)
	}
	if m, _ := h.s.pastMessage(lifeOf(s.history[8:], id(15))); m.Origin == nil || m.Origin.FirstMessageID != id(1).String() || m.Origin.Replays != 1 || string(m.Payload) != "22" || m.Key != "k" {
		t.Errorf("where what was before is gone: %+v", m)
	}
	// What was erased is told as erased, wherever it is told.
	gone := s.history[4]
	gone.Content.Bytes = nil
	if a := attemptsOf([]event.Event{s.history[3], gone}); !a[0].Erased || a[0].Error != "" || a[0].Outcome != "dead_lettered" || !EventOf(&gone).Erased {
		t.Errorf("%+v", a)
	}
	if e := EventOf(&s.history[8]); e.Count != 0 || !e.Edited || e.NewMessageID != id(13).String() {
		t.Errorf("%+v", e)
	}
	if e := EventOf(&s.history[12]); e.Why != "asked for" || e.Actor != "officer" || e.Count != 1 || e.MessageID != id(1).String() {
		t.Errorf("%+v", e)
	}
}
