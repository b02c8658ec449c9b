package machine

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/qlogd/qlogd/internal/event"
	"github.com/qlogd/qlogd/internal/eventlog"
	"github.com/qlogd/qlogd/internal/vfs"
	"github.com/qlogd/qlogd/projections"
)

// A search among more messages than are looked at in one go finds those that stay,
// while entries are applied.
func TestMessagesAreFoundInSteps(t *testing.T) {
	log, err := eventlog.Open(eventlog.Options{FS: vfs.OS{}, Dir: t.TempDir(), SegmentSize: 4 << 20, CacheBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m := New(projections.New(), log, Options{})
	index := uint64(0)
	do := func(c *event.Command) event.Result {
		t.Helper()
		index++
		e := event.Entry{Rules: event.Rules, Time: epoch + int64(index), Commands: [][]byte{event.EncodeCommand(c)}}
		rs, err := m.Apply(index, e.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return rs[0]
	}
	var want, gone []event.ID
	for i := range 3*lookedAtOnce/1000 + 1 {
		p := event.Produce{Queue: "q", AutoCreate: true}
		for j := range 1000 {
			key := "many"
			if j == 500 {
				key = "few"
			}
			c := event.Content{Payload: fmt.Appendf(nil, "%d", i)}
			p.Messages = append(p.Messages, event.NewMessage{Key: key, Priority: 5, Size: uint32(len(c.Payload)), Content: event.EncodeContent(&c)})
		}
		r := do(&event.Command{Produce: &p})
		if r.Problem != nil {
			t.Fatal(r.Problem)
		}
		want = append(want, r.Produced[500].ID)
		gone = append(gone, r.Produced[499].ID)
	}
	key := "few"
	f := event.MessageFilter{Key: &key}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			found, more := m.Messages("q", f)
			if len(found) != len(want) || more {
				t.Errorf("%d found of %d, more %v", len(found), len(want), more)
				return
			}
			for i := range found {
				if found[i].ID != want[i] {
					t.Errorf("%v in the place of %v", found[i].ID, want[i])
				}
			}
		}
	})
	for _, id := range gone {
		do(&event.Command{Delete: &event.DeleteMessage{ID: id}})
	}
	close(done)
	wg.Wait()
}
