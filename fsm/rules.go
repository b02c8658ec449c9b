package fsm

import "github.com/qlogd/qlogd/event"

// upgrade brings rules of deciding into force, for what follows in this entry
// and in all after it (I19). Nothing ever brings older ones back.
func (d *decision) upgrade(c *event.Upgrade) event.Result {
	if c.Rules > d.wants {
		// A node that does not know these rules would have gone on here.
		return problem(invalid("rules", "rules %d came in an entry that wants only %d", c.Rules,
			d.wants))
	}
	if c.Rules > d.s.Rules() {
		d.emit(event.Event{Type: event.RulesChanged, Rules: c.Rules})
	}
	return event.Result{}
}

// mark answers the marks of an entry that has been decided: what nodes compare
// is the state after all of it.
func (d *decision) mark(commands []*event.Command, results []event.Result) {
	for i, c := range commands {
		if c.Mark != nil {
			results[i].Digest = d.s.Digest()
		}
	}
}
