package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

// TestEraseTells: what an erasure tells says who asked for it and why, and it takes so many
// messages at most. (TestModel has the rest.)
func TestEraseTells(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	id := b.newest("a")
	why := event.EncodeContent(&event.Content{Why: "asked for"})
	e := &event.Erase{Task: b.task(event.TaskErase), Why: why,
		Items: []event.EraseItem{{ID: id, Refs: []event.Ref{event.RefOf(id)}}}}
	r := b.one(&event.Command{Erase: &event.Erase{Task: e.Task,
		Items: make([]event.EraseItem, event.MaxBatch+1)}})
	b.wantProblem(r, event.CodeInvalidArgument, "items must be at most 1000")
	mustEqual(t, b.ok(b.one(&event.Command{Actor: "op", Erase: e})).Count, 1)
	b.wantTells("discarded a deleted, erased a")
	for _, told := range b.last().Events {
		mustEqual(t, told.Actor, "op")
	}
	mustEqual(t, b.last().Events[1].Content.Bytes, why.Bytes)
}
