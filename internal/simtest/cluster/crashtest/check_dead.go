package crashtest

import "slices"

// What follows is about dead letters that are replayed to their place or purged.

// revivals notes every replay and purge with its message.
func (c *check) revivals(ops []Op) {
	for _, op := range ops {
		if op.Kind != Replay && op.Kind != Purge || op.Outcome == Fail || len(op.Found) != 1 {
			continue
		}
		f := op.Found[0]
		m := c.byUID[f.UID]
		if m == nil {
			c.say(Phantom, "%s of %s is about %s (%s), which nobody sent", op.Kind, op.Queue,
				op.Message, f.UID)
			continue
		}
		m.dead[op.Message] = true
		if f.ID != "" {
			m.ids[f.ID] = true
		}
		m.revivals = append(m.revivals, op)
	}
}

// revived checks what became of a message's deaths: each is replayed once, or
// purged, and what is purged is gone.
func (c *check) revived(m *message) {
	became := map[string]string{} // dead id → new id
	from := map[string]string{}   // new id → dead id
	for i := range m.revivals {
		r := &m.revivals[i]
		if !took(r, Replay) {
			continue
		}
		id := r.Found[0].ID
		if was, ok := became[r.Message]; ok && was != id {
			c.say(Twice, "%s was replayed from %s as %s and as %s", m.uid, r.Message, was, id)
		}
		if was, ok := from[id]; ok && was != r.Message {
			c.say(Twice, "%s was replayed from %s and from %s as %s", m.uid, was, r.Message, id)
		}
		became[r.Message], from[id] = id, r.Message
	}
	for i := range m.revivals {
		r := &m.revivals[i]
		if !took(r, Purge) {
			continue
		}
		if id, ok := became[r.Message]; ok {
			c.say(Twice, "%s was purged as %s and replayed from there as %s", m.uid, r.Message, id)
		}
		for _, d := range m.deliveries {
			if d.invoke > r.Return {
				c.say(CameBack, "%s was purged and then leased as %s", m.uid, d.Lease)
			}
		}
		if slices.ContainsFunc(m.settles, func(s Op) bool { return took(&s, Ack) }) {
			c.say(Twice, "%s was acked and purged as well", m.uid)
		}
	}
}
