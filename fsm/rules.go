package fsm

import "github.com/qlogd/qlogd/event"

// upgrade puts a newer rules version into force, for the rest of this entry and all later
// ones (I19). The version never decreases.
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

// mark sets the results of an entry's Mark commands: nodes compare the state after the entry.
func (d *decision) mark(commands []event.Command, results []event.Result) {
	for i := range commands {
		if commands[i].Mark != nil {
			results[i].Digest = d.s.Digest()
		}
	}
}
