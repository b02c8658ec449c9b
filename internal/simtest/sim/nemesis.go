package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
)

// nemesis does the plan, and returns when the clients' time is over.
func (w *world) nemesis() {
	began := time.Now()
	for _, s := range w.plan.Steps {
		if d := s.At - time.Since(began); d > 0 {
			w.sleep(d)
		}
		w.do(s)
	}
	if d := w.plan.Until - time.Since(began); d > 0 {
		w.sleep(d)
	}
	// What is under way ends on its own.
	w.wait(time.Hour, func() bool { return w.busy.Load() == 0 })
}

// whom finds the node that a step is about.
func (w *world) whom(s Step) *node {
	if s.Whom >= 0 {
		return w.nodes[s.Whom]
	}
	for i := range w.nodes {
		n := w.nodes[(i+int(s.Dice%3))%3]
		switch s.Whom {
		case -3:
			n = w.nodes[i]
		case -4:
			n = w.nodes[2-i]
		}
		leads := false
		up := n.with(func(e *engine) { leads = e.replica.Leader() })
		if up && leads == (s.Whom == -1) {
			return n
		}
	}
	return w.nodes[s.Dice%3]
}

// fault does something beside what else is done.
func (w *world) fault(do func()) {
	w.busy.Add(1)
	w.work.Go(func() {
		defer w.busy.Add(-1)
		do()
	})
}

func (w *world) do(s Step) {
	n := w.whom(s)
	r := rand.New(rand.NewPCG(s.Dice, 5))
	others := make([]*node, 0, 2)
	for _, o := range w.nodes {
		if o != n {
			others = append(others, o)
		}
	}
	other := others[r.IntN(2)]
	switch s.Kind {
	case Wipe, PutBack, LoseStore, Flip, Remove:
		// Data is lost on one node only, and only while the others have theirs.
		if !s.Force && !w.wait(20*time.Second, func() bool {
			return w.busy.Load() == 0 &&
				w.illness() == ""
		}) {
			w.say(n, "%s: not now (%s)", s.Kind, w.illness())
			return
		}
	}
	w.count(string(s.Kind))
	w.say(n, "%s, for %v", s.Kind, s.For)
	cut := func(pairs ...*node) {
		for i := 0; i < len(pairs); i += 2 {
			w.net.Cut(pairs[i].name, pairs[i+1].name)
		}
		w.fault(func() {
			w.sleep(s.For)
			w.say(n, "%s: healed", s.Kind)
			for i := 0; i < len(pairs); i += 2 {
				w.net.Heal(pairs[i].name, pairs[i+1].name)
			}
		})
	}
	a, b := others[0], others[1]
	switch s.Kind {
	case CutPower, Kill:
		w.fault(func() {
			n.down(s.Kind == CutPower, r)
			w.sleep(s.For)
			n.start()
		})
	case CutInWrite:
		w.fault(func() {
			l := n.now()
			if l == nil {
				return
			}
			l.mem.CrashAt(l.mem.Ops() + 1 + r.IntN(40))
			w.wait(2*time.Second, l.mem.Crashed)
			n.down(true, r)
			w.sleep(s.For)
			n.start()
		})
	case CutAll:
		w.fault(func() {
			w.cutAll(r, func() time.Duration { return time.Duration(r.Int64N(int64(s.For))) })
			_ = w.cross(60 * time.Second)
		})
	case Restart:
		w.fault(func() {
			n.stop()
			w.sleep(min(s.For, time.Second))
			n.start()
		})
	case Isolate:
		cut(n, a, a, n, n, b, b, n)
	case Deafen:
		cut(a, n, b, n)
	case Mute:
		cut(n, a, n, b)
	case CutLine:
		cut(n, other, other, n)
	case CutWay:
		cut(n, other)
	case SlowLines:
		w.bend(&w.slow[index(w, n)], ms(r, 20, 800), s.For)
	case SlowApply:
		w.bend(&n.apply, ms(r, 20, 400), s.For)
	case StallDisk:
		n.stalled.Store(true) // from now on it may end of that
		w.bend(&n.stall, ms(r, 100, 7000)*time.Duration(1+4*r.IntN(2)), s.For)
	case Clock:
		by := ms(r, 100, 20000)
		switch r.IntN(3) {
		case 0:
			by = time.Duration(r.IntN(3*365*24)) * time.Hour
		case 1:
			by = time.Duration(r.IntN(90)) * time.Minute
		}
		if r.IntN(2) == 0 {
			by = -by
		}
		w.say(n, "its wall clock jumps by %v", by)
		n.wall.Add(int64(by))
	case Transfer:
		w.fault(func() {
			n.with(func(e *engine) {
				ctx, cancel := context.WithTimeout(e.l.alive, 5*time.Second)
				defer cancel()
				if err := e.replica.TransferLeadership(ctx, ""); err != nil {
					w.say(n, "leadership was not transferred: %v", err)
				}
			})
		})
	case Checkpoint:
		w.fault(func() {
			n.with(func(e *engine) {
				ctx, cancel := context.WithTimeout(e.l.alive, 5*time.Second)
				defer cancel()
				_, _ = e.replica.SnapshotAll(ctx)
			})
		})
	case FullDisk:
		w.bend(&n.full, 1, s.For)
	case Remove:
		w.remove(n, other)
	case FailWrite:
		if l := n.now(); l != nil {
			at := l.mem.Ops() + 1 + r.IntN(40)
			l.failAt.Store(int64(at))
			l.mem.FailAt(at, errDisk)
		}
	case Flip:
		w.flip(n, r, s.For)
	case LoseStore:
		n.down(false, r) // with a torn event log besides, nobody could say what is missing
		n.lose([]string{"stable.db", "wal-meta.db"}[r.IntN(2)])
		w.fault(func() {
			w.sleep(s.For)
			n.start()
		})
	case Wipe:
		n.down(r.IntN(2) == 0, r)
		n.wipe()
		w.fault(func() {
			w.sleep(s.For)
			n.start()
		})
	case Copy:
		if l := n.now(); l != nil && !l.mem.Crashed() {
			w.copies = append(w.copies, backup{n, l.mem.Clone()})
		}
	case PutBack:
		w.putBack(n, r, s)
	}
}

// flip changes one byte of a node that is down. It may find it at its start, or
// later, and end; or never come to it. It must not show it to anybody, nor pass
// it on. Its operator then empties the directory.
func (w *world) flip(n *node, r *rand.Rand, d time.Duration) {
	n.down(false, r)
	if !n.flip(r) {
		n.start()
		return
	}
	n.flipped.Store(true)
	n.start()
	w.sleep(d)
	n.down(false, r)
	n.wipe()
	n.flipped.Store(false)
	n.start()
}

// remove takes a node out of the cluster, through another. It learns of it, ends,
// and is given an empty directory (see fail); then the cluster takes it in again.
func (w *world) remove(n, through *node) {
	var err error
	through.with(func(e *engine) {
		ctx, cancel := context.WithTimeout(e.l.alive, 10*time.Second)
		defer cancel()
		err = e.replica.RemoveMember(ctx, n.name, false)
	})
	if err != nil {
		w.say(n, "was not removed: %v", err)
	}
}

func index(w *world, n *node) int {
	for i, o := range w.nodes {
		if o == n {
			return i
		}
	}
	panic("unreachable")
}

// bend sets a value for a while.
func (w *world) bend(v interface{ Store(int64) }, to, d time.Duration) {
	v.Store(int64(to))
	w.fault(func() {
		w.sleep(d)
		v.Store(0)
	})
}

// down ends a node, and keeps it down.
func (n *node) down(power bool, r *rand.Rand) {
	n.mu.Lock()
	n.wanted = false
	l := n.life
	n.mu.Unlock()
	n.crash(l, power, r)
}

// cutAll cuts the power of all nodes at once; each comes back after a while.
func (w *world) cutAll(r *rand.Rand, after func() time.Duration) {
	at := w.d.History.Now()
	for _, n := range w.nodes {
		n.down(true, r)
	}
	dead := true
	for _, n := range w.nodes {
		dead = dead && n.now() == nil
	}
	if dead {
		w.d.History.Add(crashtest.Op{Client: -1, Kind: crashtest.Crash, Invoke: at,
			Return: w.d.History.Now(), Outcome: crashtest.OK})
	}
	for _, n := range w.nodes {
		d := after()
		w.fault(func() {
			w.sleep(d)
			n.start()
		})
	}
}

// putBack puts an old copy in place of a node's disk. What it has forgotten the
// others must be able to say: a node that is vouched for by a majority takes
// part, and who else knows better may be cut off (I16). So nothing else is done
// until that is decided.
func (w *world) putBack(n *node, r *rand.Rand, s Step) {
	var of []backup
	for _, b := range w.copies {
		if b.n == n {
			of = append(of, b)
		}
	}
	if len(of) == 0 {
		if len(w.copies) == 0 {
			return
		}
		of = w.copies
	}
	b := of[r.IntN(len(of))]
	n = b.n
	n.down(true, r)
	n.mu.Lock()
	is, mark := n.disk, n.disk.Get(markFile)
	n.disk = b.disk.Clone()
	was, _ := readCard(n.disk)
	// Some have their mark on another disk. That of another incarnation would be refused.
	if card, err := readCard(is); err == nil && was != nil && card != nil &&
		card.Incarnation == was.Incarnation && mark != nil && r.IntN(2) == 0 {
		n.disk.Put(markFile, mark)
		w.count("marks kept")
	}
	n.mu.Unlock()
	w.say(n, "an old copy of its disk is put back")
	w.count("copies put back")
	w.sleep(min(s.For, time.Second))
	n.start()
	if !s.Force && !w.healthy(60*time.Second) {
		w.find("not healthy 60 s after an old copy was put back: %s", w.illness())
	}
}
