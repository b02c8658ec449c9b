package crashtest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// What follows is about several nodes: that a read through one of them shows
// what was written through another, and that the entries which the answers name
// are in the order of time.

// How far a message has come; it never goes back.
const (
	unmade = iota
	waits
	gone
)

func rank(state string) int {
	switch state {
	case Absent, "":
		return unmade
	case "scheduled", "ready", "leased":
		return waits
	}
	return gone
}

// reads checks each single message that was asked for.
func (c *check) reads(ops []Op) {
	byUID := map[string][]Op{}
	for _, op := range ops {
		if (op.Kind == Get || op.Kind == Stale) && op.Outcome == OK && len(op.Found) == 1 {
			byUID[op.Found[0].UID] = append(byUID[op.Found[0].UID], op)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(byUID)) {
		m := c.byUID[uid]
		if m == nil {
			c.say(Phantom, "a read shows %s, which nobody sent", uid)
			continue
		}
		for i, op := range byUID[uid] {
			c.read(m, &op)
			for _, before := range byUID[uid][:i] {
				// A stale one only promises not to go back on one node while it lives.
				same := before.Node == op.Node && before.Life == op.Life
				if before.Return < op.Invoke &&
					rank(before.Found[0].State) > rank(op.Found[0].State) &&
					(op.Kind == Get || same) {
					c.say(Backwards, "%s was %s on %s and later %s on %s (%s)", uid,
						before.Found[0].State, before.Node, op.Found[0].State, op.Node, op.Kind)
				}
			}
		}
	}
}

// read checks what one read shows against what was asked and answered before.
func (c *check) read(m *message, op *Op) {
	shown := rank(op.Found[0].State)
	mayBeGone := c.rules[m.queue].DeadLetters != ""
	for i := range m.settles {
		s := &m.settles[i]
		if op.Kind == Get && took(s, Ack, DeadLetter) && s.Return < op.Invoke && shown != gone {
			c.say(Old, "%s was settled (%s) on %s and then %s on %s", m.uid, s.Kind, s.Node,
				op.Found[0].State, op.Node)
		}
		mayBeGone = mayBeGone || mayHaveTaken(s, Ack, DeadLetter) && s.Invoke < op.Return
	}
	switch {
	case op.Kind == Get && shown == unmade && m.requested.ret < op.Invoke:
		c.say(Old, "%s was enqueued and is not there on %s", m.uid, op.Node)
	case shown == gone && !mayBeGone:
		c.say(Phantom, "%s is %s on %s, and nobody asked for that", m.uid, op.Found[0].State,
			op.Node)
	case shown != unmade && op.Return < m.requested.invoke:
		c.say(Phantom, "%s is there before it was sent", m.uid)
	}
}

// indexes checks that writes which were not under way at the same time are in
// entries of the same order. A repeat may get the entry of an earlier
// attempt, so a request and its repeats are one. An attempt that surely failed has no
// entry: if a repeat names one from before it was asked, that answer was wrong.
func (c *check) indexes(ops []Op) {
	type write struct {
		name        string
		invoke, ret int64
		index       uint64
	}
	writes := map[string]*write{}
	for i := range ops {
		op := &ops[i]
		name := ""
		switch {
		case op.Outcome == Fail:
			continue
		case op.Kind == Produce, op.Kind == Replay, op.Kind == Purge:
			name = op.Request
		case op.Kind == Extend || op.Kind == Lease:
			name = fmt.Sprint(op.Kind, " ", i)
		case isSettle(op.Kind):
			name = fmt.Sprint(op.Kind, " ", op.Lease)
		default:
			continue
		}
		w := writes[name]
		if w == nil {
			w = &write{name: name, invoke: op.Invoke, ret: math.MaxInt64}
			writes[name] = w
		}
		if op.Outcome == OK && op.Index != 0 && op.Return < w.ret {
			w.ret, w.index = op.Return, op.Index
		}
	}
	var begun []*write
	for _, w := range writes {
		if w.index != 0 {
			begun = append(begun, w)
		}
	}
	ended := slices.SortedFunc(slices.Values(begun),
		func(a, b *write) int { return cmp.Compare(a.ret, b.ret) })
	slices.SortFunc(begun, func(a, b *write) int { return cmp.Compare(a.invoke, b.invoke) })
	highest, next := &write{}, 0
	for _, w := range begun {
		for ; next < len(ended) && ended[next].ret < w.invoke; next++ {
			if ended[next].index > highest.index {
				highest = ended[next]
			}
		}
		if w.index <= highest.index {
			c.say(Index, "%s is entry %d, and was asked after %s had been answered as entry %d",
				w.name, w.index, highest.name, highest.index)
		}
	}
}
