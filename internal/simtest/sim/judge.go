package sim

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/vfs"
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
				if err := s.Check(); err != nil {
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
			if err := sameLogs(w.nodes[0].disk, n.disk); err != nil {
				w.find("%s and %s: %v", w.nodes[0].name, n.name, err)
			}
		}
	}
}

// sameLogs compares two logs byte for byte, up to the head that both have.
func sameLogs(a, b *vfs.Mem) error {
	open := func(m *vfs.Mem) (*log.Log, error) {
		return log.OpenReadOnly(log.Options{FS: m, Dir: logDir})
	}
	x, err := open(a)
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := open(b)
	if err != nil {
		return err
	}
	defer y.Close()
	common := min(x.Head(), y.Head())
	last, end, err := x.Extent(common)
	if err != nil {
		return fmt.Errorf("block %d: %w", common, err)
	}
	for _, s := range x.Segments() {
		p, q := a.Get(path.Join(logDir, s.Name)), b.Get(path.Join(logDir, s.Name))
		if s.Name == last {
			p, q = p[:min(end, int64(len(p)))], q[:min(end, int64(len(q)))]
		}
		if !bytes.Equal(p, q) {
			i := 0
			for i < min(len(p), len(q)) && p[i] == q[i] {
				i++
			}
			return fmt.Errorf("segment %s differs at byte %d (of %d and %d), below block %d",
				s.Name, i, len(p), len(q), common)
		}
		if s.Name == last {
			return nil
		}
	}
	return fmt.Errorf("there is no segment %s", last)
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
