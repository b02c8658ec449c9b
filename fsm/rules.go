package fsm

import "github.com/qlogd/qlogd/event"

// upgrade puts rules of deciding into force, for the rest of this entry and all later
// ones (I19). They never go back.
func (d *decision) upgrade(c *event.Upgrade) event.Result {
	if c.Rules > d.wants {
		// A node that does not know these rules would not have stopped at this entry.
		return problem(invalid("rules", "rules %d came in an entry that wants only %d", c.Rules,
			d.wants))
	}
	if c.Rules > d.s.Rules() {
		d.emit(event.Event{Type: event.RulesChanged, Rules: c.Rules})
	}
	return event.Result{}
}

// mark answers the marks of a decided entry: nodes compare the state after all of it.
func (d *decision) mark(commands []event.Command, results []event.Result) {
	for i := range commands {
		if commands[i].Mark != nil {
			results[i].Digest = d.s.Digest()
		}
	}
}
