package fsm_test

import (
	"sync"
	"testing"

	"github.com/qlogd/qlogd/event"
)

// A search among more messages than are looked at in one go finds those that stay,
// while entries are applied.
func TestMessagesAreFoundInSteps(t *testing.T) {
	m := newBench(t, plain())
	var want, gone []event.ID
	for range 3*4096/1000 + 1 {
		r := m.do(t, m.produce(1000, "q", func(i int) string {
			if i == 500 {
				return "few"
			}
			return "many"
		}))[0]
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
		m.do(t, event.EncodeCommand(&event.Command{Delete: &event.DeleteMessage{ID: id}}))
	}
	close(done)
	wg.Wait()
}
