package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func (b *bench) erase(task event.ID, items ...event.EraseItem) event.Result {
	b.t.Helper()
	return b.one(&event.Command{Actor: "op", Erase: &event.Erase{Task: task, Items: items, Why: event.EncodeContent(&event.Content{Why: "asked for"})}})
}

// item is a message as who erases it sees it.
func (b *bench) item(text string) event.EraseItem {
	b.t.Helper()
	id := b.newest(text)
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
	task := b.task(event.TaskErase)
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

// TestEraseRefuses: only an erasure that runs and is not sealed tells anything.
func TestEraseRefuses(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	update := func(task event.ID, op event.TaskOp) event.ID {
		b.ok(b.change(task, op))
		return task
	}
	other := b.task(event.TaskReplay)
	for about, task := range map[string]event.ID{
		"none": {}, "of another kind": other, "cancelled": update(b.task(event.TaskErase), event.TaskOpCancel),
		"sealed": update(b.task(event.TaskErase), event.TaskOpSeal), "ended": update(b.task(event.TaskErase), event.TaskOpComplete),
	} {
		b.wantProblem(b.erase(task, b.item("a")), event.CodeConflict, "")
		assert.Equal(t, b.tells(), "", "%s", about)
	}
	task := update(update(b.task(event.TaskErase), event.TaskOpCancel), event.TaskOpResume)
	b.wantProblem(b.erase(task, make([]event.EraseItem, event.MaxBatch+1)...), event.CodeInvalidArgument, "items must be at most 1000")
	mustEqual(t, b.ok(b.erase(task, b.item("a"))).Count, 1)
}
