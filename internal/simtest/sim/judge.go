package sim

import (
	"context"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
	"github.com/qlogd/qlogd/internal/simtest/invariants"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/replay"
)

// judge looks at what the nodes hold in the end.
func (w *world) judge() {
	type where struct {
		index  uint64
		chain  [32]byte
		digest [16]byte
	}
	look := func() (at []where) {
		for _, n := range w.nodes {
			n.with(func(e *engine) {
				e.machine.View(func(s *projections.State) {
					_, chain := e.log.Tip()
					at = append(at, where{s.Index(), chain, s.Digest()})
				})
			})
		}
		return at
	}
	level := func(at []where) bool {
		return len(at) == 3 && at[0].index == at[1].index &&
			at[1].index == at[2].index
	}
	var at []where
	if !w.wait(time.Minute, func() bool { at = look(); return level(at) }) {
		w.find("the nodes do not come to the same index: %+v; %s", at, w.illness())
		return
	}
	for i := range at {
		if at[i] != at[0] {
			w.find("at index %d %s has chain %x and digest %x, %s chain %x and digest %x",
				at[0].index, w.nodes[0].name, at[0].chain, at[0].digest,
				w.nodes[i].name, at[i].chain, at[i].digest)
		}
	}
	for _, n := range w.nodes {
		n.with(func(e *engine) {
			e.machine.View(func(s *projections.State) {
				if err := invariants.Check(s); err != nil {
					w.find("%s: the state does not add up: %v", n.name, err)
				}
			})
		})
	}
	for _, n := range w.nodes {
		n.stop()
	}
	for i, n := range w.nodes {
		if _, err := replay.Verify(context.Background(), n.disk, "/", nil, nil); err != nil {
			w.find("%s does not pass verification: %v", n.name, err)
		}
		if i > 0 {
			if err := cluster.SameLogs(w.nodes[0].disk, logDir, n.disk, logDir); err != nil {
				w.find("%s and %s: %v", w.nodes[0].name, n.name, err)
			}
		}
	}
}

// Judge says all that is wrong with a run: what was found while it ran, and what
// its history shows. It takes real time, so it is to be called outside of the
// bubble.
func (r *Report) Judge() []string {
	if len(r.Findings) > 0 {
		return r.Findings // it ended before its end, which the history needs
	}
	wrong, undecided := crashtest.Judge(r.Ops, true, 10*time.Second)
	if undecided > 0 {
		r.Counts["lanes that porcupine could not decide"] += undecided
	}
	var out []string
	for _, v := range wrong {
		out = append(out, v.String())
	}
	return out
}
