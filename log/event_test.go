package log

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
)

// diary writes a log block by block, in words.
type diary struct {
	t     *testing.T
	fs    *memdisk.Disk
	log   *Log
	index uint64
	clock int64
	last  map[event.ID]event.Ref
	lease event.ID // the newest
}

func begin(t *testing.T, o Options) *diary {
	t.Helper()
	s := &diary{t: t, fs: memdisk.New(), clock: 1_700_000_000_000, index: 2,
		last: map[event.ID]event.Ref{}}
	o.FS, o.Dir = s.fs, "log"
	s.log = mustOpen(t, o)
	return s
}

// block appends one entry's events, a second after the one before, and gives
// them ids and back-pointers as deciding does.
func (s *diary) block(events ...event.Event) []event.Event {
	s.t.Helper()
	s.index++
	s.clock += 1000
	b := &event.Block{Index: s.index, Time: s.clock, Events: events}
	for i := range events {
		e := &events[i]
		e.ID = event.NewID(s.clock, s.index, uint32(i))
		if e.Type == event.Enqueued {
			e.Subject = e.ID
		}
		if e.Type == event.Leased {
			e.Lease = e.ID
		}
		if e.Subject != (event.ID{}) {
			e.Prev = s.last[e.Subject]
			s.last[e.Subject] = event.RefOf(e.ID)
		}
		if e.IsMove() {
			s.last[e.ID] = event.RefOf(e.ID)
		}
	}
	must(s.t, s.log.Append(b))
	return events
}

func (s *diary) enqueue(queue, text string) event.ID {
	s.t.Helper()
	return s.block(event.Event{Type: event.Enqueued, Queue: queue,
		Content: event.EncodeContent(&event.Content{Payload: []byte(text)})})[0].ID
}

func (s *diary) about(id event.ID, e event.Event) event.ID {
	s.t.Helper()
	e.Subject = id
	return s.block(e)[0].ID
}

func types(events []event.Event) (out []string) {
	for _, e := range events {
		out = append(out, e.Type.String()+"@"+e.Queue)
	}
	return out
}

// TestHistory: whichever id is asked for, the history of the whole family is returned, each
// event once and in the order of the log.
func TestHistory(t *testing.T) {
	s := begin(t, Options{SegmentSize: 4 << 10}) // over several segments
	var want []string
	next := func(id event.ID, typ event.Type, queue, to string) event.ID {
		s.enqueue("noise", `"between"`)
		want = append(want, typ.String()+"@"+queue)
		e := event.Event{Type: typ, Queue: queue, ToQueue: to}
		if endsLease(typ) {
			e.Lease = s.lease
		}
		if id = s.about(id, e); typ == event.Leased {
			s.lease = id
		}
		return id
	}
	first := s.enqueue("jobs", "1")
	want = append(want, "enqueued@jobs")
	lease := next(first, event.Leased, "jobs", "")
	dead := next(first, event.DeadLettered, "jobs", "jobs.dlq")
	lease2 := next(dead, event.Leased, "jobs.dlq", "")
	next(dead, event.Released, "jobs.dlq", "")
	back := next(dead, event.Replayed, "jobs.dlq", "jobs")
	next(back, event.Leased, "jobs", "")
	next(back, event.Acked, "jobs", "")
	again := next(back, event.Resurrected, "jobs", "jobs")
	open := next(again, event.Leased, "jobs", "")
	other := next(back, event.Resurrected, "jobs", "other") // while the first one lives
	grave := next(other, event.DeadLettered, "other", "other.dlq")
	next(back, event.Erased, "", "")
	next(grave, event.Discarded, "other.dlq", "")
	for _, id := range []event.ID{first, dead, back, again, other, grave} {
		got, err := s.log.History(t.Context(), id)
		must(t, err)
		assert.Equal(t, cmp.Diff(want, types(got)), "", "by %s", id)
	}
	for _, id := range []event.ID{event.NewID(s.clock, 3, 77), event.NewID(s.clock, 9999, 0), {}} {
		got, err := s.log.History(t.Context(), id)
		assert.True(t, err == nil && len(got) == 0, "never seen: %v, %v", types(got), err)
	}
	ends := map[event.ID]event.Type{lease: event.DeadLettered, lease2: event.Released}
	for l, want := range ends {
		e, err := s.log.EndOf(t.Context(), l)
		assert.True(t, err == nil && e.Type == want, "end of %s: %+v, %v", l, e, err)
	}
	for _, id := range []event.ID{open, first} {
		_, err := s.log.EndOf(t.Context(), id)
		assert.ErrorIs(t, err, ErrNotFound, "an open lease, or a message, has ended")
	}
}

func TestInstants(t *testing.T) {
	s := begin(t, Options{})
	s.index = 9
	a := s.enqueue("q", "1") // 10, at +1 s
	s.index = 14             // 11 to 14 are Raft's own
	b := s.enqueue("q", "2") // 15, at +2 s
	s.clock -= 1000
	c := s.enqueue("q", "3") // 16, at +2 s as well
	base := s.clock - 2000
	at := func(ms int64) event.Instant {
		return event.Instant{Kind: event.InstantTime, Time: base + ms}
	}
	index := func(i uint64) event.Instant {
		return event.Instant{Kind: event.InstantIndex, Index: i}
	}
	id := func(id event.ID) event.Instant {
		return event.Instant{Kind: event.InstantID, ID: id, Index: event.RefOf(id).Index}
	}
	for _, x := range []struct {
		name     string
		at       event.Instant
		from, to uint64
	}{
		{"start", event.Instant{Kind: event.InstantStart}, 10, 0},
		{"now", event.Instant{Kind: event.InstantNow}, 17, 16},
		{"before all", at(0), 10, 9},
		{"at the first", at(1000), 10, 14},
		{"between", at(1500), 15, 14},
		{"two in one millisecond", at(2000), 15, 16},
		{"after all", at(5000), 17, 16},
		{"index 0", index(0), 1, 0},
		{"an index", index(15), 15, 15},
		{"an index between", index(12), 12, 12},
		{"the head", index(16), 16, 16},
		{"an event", id(a), 10, 10},
		{"the last event", id(c), 16, 16},
	} {
		from, err := s.log.From(x.at)
		assert.True(t, err == nil && from == x.from,
			"from %s: %d, %v; want %d", x.name, from, err, x.from)
		to, err := s.log.To(x.at)
		assert.True(t, err == nil && to == x.to, "to %s: %d, %v; want %d", x.name, to, err, x.to)
	}
	stranger := event.NewID(event.ClockOf(b), 15, 9)
	for name, at := range map[string]event.Instant{
		"beyond": index(17), "another log's event": id(stranger),
		"the future": {Kind: event.InstantTime, Time: time.Now().UnixMilli() + 3_600_000},
	} {
		for _, resolve := range []func(event.Instant) (uint64, error){s.log.From, s.log.To} {
			_, err := resolve(at)
			assert.True(t, IsRange(err) && !errors.Is(err, ErrGone), "%s: %v", name, err)
		}
	}
}
