package machine

import (
	"runtime"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// lookedAtOnce is how many messages are looked at in one go: a tenth of a
// millisecond, or some where none of them is in the processor's cache.
const lookedAtOnce = 4096

// Messages returns a queue's messages by id, and whether there are more. A few among
// millions are searched in steps, between which the state goes on (projections.Walk):
// while it is read nothing is applied, and where there is one processor nobody else
// is served.
func (m *Machine) Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool) {
	var w projections.Walk
	for done := false; !done; runtime.Gosched() {
		m.View(func(s *projections.State) { done = w.Messages(s, queue, f, lookedAtOnce) })
	}
	return w.Found, w.More
}
