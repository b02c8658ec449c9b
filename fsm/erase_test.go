package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func (b *bench) erasure() event.ID {
	b.t.Helper()
	return b.ok(b.one(&event.Command{CreateTask: &event.CreateTask{Kind: event.TaskErase}})).ID
}

func (b *bench) erase(task event.ID, items ...event.EraseItem) event.Result {
	b.t.Helper()
	return b.one(&event.Command{Actor: "op", Erase: &event.Erase{Task: task, Items: items, Why: event.EncodeContent(&event.Content{Why: "asked for"})}})
}

// item is a message as who erases it sees it.
func (b *bench) item(text string) event.EraseItem {
	b.t.Helper()
	l := b.ids[text]
	id := l[len(l)-1]
	it := event.EraseItem{ID: id, Refs: []event.Ref{event.RefOf(id)}}
	if _, live := b.m.Message(id); !live {
		for _, e := range b.log.events() {
			if e.Subject == id {
				it.Last = event.RefOf(e.ID)
			}
		}
	}
	return it
}

// TestErase: live messages leave, in whatever state, and of each is told what is
// to be overwritten, by whom and why.
func TestErase(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "leased", "ready", "gone")
	b.put("q", msg("later", delay(500)))
	b.wantTake("q", 1, "leased")
	b.ok(b.remove("gone"))
	task := b.erasure()
	items := []event.EraseItem{b.item("leased"), b.item("gone"), b.item("ready"), b.item("later"), b.item("leased")}
	lease := b.leases["leased"]
	r := b.ok(b.erase(task, items...))
	b.wantTells("discarded leased deleted, erased leased, erased gone, discarded ready deleted, erased ready, discarded later deleted, erased later")
	mustEqual(t, r.Count, 4)
	b.wantHolds("q", "")
	events := b.last().Events
	for i := range events {
		e := &events[i]
		mustEqual(t, e.Task, task)
		mustEqual(t, e.Actor, "op")
		if e.Type != event.Erased {
			continue
		}
		c, err := event.DecodeContent(e.Content.Bytes)
		if err != nil || c.Why != "asked for" {
			t.Errorf("why: %+v, %v", c, err)
		}
		mustEqual(t, e.Refs[0], event.RefOf(e.Subject))
		if want := map[bool]string{true: "", false: "q"}[b.names[e.Subject] == "gone"]; e.Queue != want {
			t.Errorf("%s: in queue %q", b.names[e.Subject], e.Queue)
		}
	}
	mustEqual(t, events[0].Lease, lease)
	mustEqual(t, events[1].Prev, event.RefOf(events[0].ID))
	mustEqual(t, events[2].Prev, items[1].Last)
	b.want(event.OpAck, "leased", event.StatusRejected)
	b.restart()
	v, _ := b.m.Task(task)
	mustEqual(t, v.Done, 4)
	b.refold()
}

// TestEraseAgain: an item that is not as it was seen is passed over; so is one
// that was decided to be gone, until that is carried out.
func TestEraseAgain(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "acked", "purged")
	task := b.erasure()
	acked, purged := b.item("acked"), b.item("purged")
	b.wantTake("q", 1, "acked")
	b.want(event.OpAck, "acked", event.StatusAcked)
	mustEqual(t, b.ok(b.erase(task, acked)).Count, 0)
	b.wantTells("")
	mustEqual(t, b.ok(b.erase(task, b.item("acked"))).Count, 1)
	rs := b.do(
		&event.Command{PurgeQueue: &event.PurgeQueue{Name: "q"}},
		&event.Command{Erase: &event.Erase{Task: task, Items: []event.EraseItem{purged}}},
	)
	mustEqual(t, rs[1].Count, 0)
	b.wantTells("queue_purged")
	mustEqual(t, b.ok(b.erase(task, b.item("purged"))).Count, 0) // it was there when it was looked at
	b.wantTells("discarded purged purged")
	mustEqual(t, b.ok(b.erase(task, b.item("purged"))).Count, 1)
	b.wantTells("erased purged")
	b.refold()
}

// TestEraseBroughtBack: one that was resurrected since it was looked at is passed
// over, so that its events stay one chain; looked at again, it is erased.
func TestEraseBroughtBack(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	b.ok(b.remove("a"))
	task, was := b.erasure(), b.item("a")
	b.ok(b.one(&event.Command{Resurrect: &event.Resurrect{ID: was.ID, Last: was.Last, Queue: "q", Priority: 5, Content: msg("a").Content}}))
	mustEqual(t, b.ok(b.erase(task, was)).Count, 0)
	b.wantTells("")
	was.Last = event.RefOf(b.log.events()[len(b.log.events())-1].ID)
	mustEqual(t, b.ok(b.erase(task, was)).Count, 1)
	mustEqual(t, b.last().Events[0].Prev, was.Last)
	b.refold()
}

// TestEraseRefuses: only an erasure that runs and is not sealed tells anything.
func TestEraseRefuses(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	update := func(task event.ID, op event.TaskOp) event.ID {
		b.ok(b.one(&event.Command{UpdateTask: &event.UpdateTask{ID: task, Op: op}}))
		return task
	}
	other := b.ok(b.one(&event.Command{CreateTask: &event.CreateTask{Kind: event.TaskReplay, Queue: "q"}})).ID
	for about, task := range map[string]event.ID{
		"none": {}, "of another kind": other, "cancelled": update(b.erasure(), event.TaskOpCancel),
		"sealed": update(b.erasure(), event.TaskOpSeal), "ended": update(b.erasure(), event.TaskOpComplete),
	} {
		b.wantProblem(b.erase(task, b.item("a")), event.CodeConflict, "")
		if b.tells() != "" {
			t.Errorf("%s: %s", about, b.tells())
		}
	}
	task := update(update(b.erasure(), event.TaskOpCancel), event.TaskOpResume)
	b.wantProblem(b.erase(task, make([]event.EraseItem, event.MaxBatch+1)...), event.CodeInvalidArgument, "items must be at most 1000")
	mustEqual(t, b.ok(b.erase(task, b.item("a"))).Count, 1)
}

// TestEraseHeld: what held its key lets it go on when it is erased.
func TestEraseHeld(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", with(ordering(event.PerKey), dlq("dead"), onDead(event.DeadHoldKey)))
	b.fillKeys("q", "a1", "a2")
	b.wantTake("q", 1, "a1")
	b.want(event.OpDeadLetter, "a1", event.StatusDeadLettered)
	b.wantTake("q", 1, "")
	b.ok(b.erase(b.erasure(), b.item("a1")))
	b.wantTake("q", 1, "a2")
	b.refold()
}
