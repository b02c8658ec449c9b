package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
)

// lagging is a node that lacks something, and the peer that has it.
type lagging struct {
	name string
	net  *memNet
	peer *node
	meta checkpoint.Meta
	disk *memdisk.Disk // never written to: clones are
	// old and fresh are the files before and after, ops and sent what it takes.
	old, fresh map[string]string
	ops        int
	sent       int64
}

// laggings are the ways to lack something.
func laggings(t testing.TB) []*lagging {
	t.Helper()
	var out []*lagging
	for name, prepare := range map[string]func(n *node) *memdisk.Disk{
		"wiped": func(n *node) *memdisk.Disk { n.grow(25); return memdisk.New() },
		"behind": func(n *node) *memdisk.Disk {
			n.grow(12).checkpoint()
			d := n.grow(3).copy()
			n.grow(18)
			return d
		},
		"the checkpoint alone": func(n *node) *memdisk.Disk { n.grow(12).checkpoint(); return n.grow(13).copy() },
		"gap": func(n *node) *memdisk.Disk {
			n.grow(12).checkpoint()
			d := n.grow(3).copy()
			n.grow(40).retain(3)
			return d
		},
	} {
		n := newNode(t, 5)
		disk := prepare(n)
		disk.Put("/projections.db", []byte("read models"))
		l := &lagging{name: name, net: newNet(), peer: n, disk: disk, meta: n.checkpoint()}
		n.grow(2)
		n.serve(l.net, "a")
		whole := disk.Clone()
		must(t, l.bring(whole))
		must(t, sameAsSource(t, whole, n, l.meta))
		l.old, l.fresh = snapshot(t, disk), snapshot(t, whole)
		require.False(t, maps.Equal(l.old, l.fresh), "nothing was brought")
		l.ops, l.sent = whole.Ops(), l.net.sent
		out = append(out, l)
	}
	return out
}

// bring does what a node does: open (which installs), fetch, open again.
func (l *lagging) bring(disk vfs.FS) error {
	if _, err := Install(disk, "/", nil, silent); err != nil {
		return err
	}
	if metas, _, err := checkpoint.List(disk, "/checkpoints"); err != nil {
		return err
	} else if len(metas) > 0 && metas[0].Index >= l.meta.Index {
		return nil // it would not be offered
	}
	p, err := Fetch(context.Background(), optionsOf(l.net, disk, l.meta, "a"))
	if err == nil {
		_, err = Install(disk, "/", p, silent)
	}
	return err
}

// snapshot returns all files of a disk but those of incoming/ and the side files,
// which are made anew.
func snapshot(t testing.TB, disk *memdisk.Disk) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{"/", "/log", "/checkpoints"} {
		for name, b := range files(t, disk, dir, "") {
			if disk.Get(path.Join(dir, name)) != nil && !strings.HasSuffix(name, ".idx") {
				out[path.Join(dir, name)] = b
			}
		}
	}
	return out
}

// every is how far apart the cases of a walk are: 1 in a whole campaign, as given in its sample
// (make crashwalk QLOGD_CRASH=, make flips) and in make test.
func every(sample, short int) int {
	switch {
	case os.Getenv("QLOGD_CRASH") == "full":
		return 1
	case testing.Short():
		return short
	}
	return sample
}

// losses are all kinds in a campaign, and one in make test.
func losses(at int) []memdisk.Loss {
	if testing.Short() {
		return []memdisk.Loss{memdisk.Loss(at % 4)}
	}
	return []memdisk.Loss{memdisk.LoseAll, memdisk.LoseNone, memdisk.LosePrefix, memdisk.LoseRandom}
}

// A crash in each write, sync, creation, rename and removal of Fetch and of
// Install leaves, after the Install of the next start, the old directory or the
// new one; and in the end it is the new one.
func TestCrashAnywhere(t *testing.T) {
	for _, l := range laggings(t) {
		t.Run(l.name, func(t *testing.T) {
			crashes := 0
			for at := 1; at <= l.ops; at += every(3, 3) {
				for _, loss := range losses(at) {
					crashes++
					disk := l.disk.Clone()
					disk.CrashAt(at)
					err := l.bring(disk)
					require.True(t, disk.Crashed(), "operation %d did not come", at)
					require.False(t, err == nil && at < l.ops,
						"operation %d: the crash was not told", at)
					after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
					require.NoError(t, l.afterCrash(t, after),
						"crash at operation %d, loss %d", at, loss)
				}
			}
			t.Logf("figures: %d crashes in %d operations of a catch-up", crashes, l.ops)
		})
	}
}

func (l *lagging) afterCrash(t *testing.T, after *memdisk.Disk) error {
	if _, err := Install(after, "/", nil, silent); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	now := snapshot(t, after)
	if !maps.Equal(now, l.old) && !maps.Equal(now, l.fresh) {
		return fmt.Errorf("neither the old nor the new directory: %v", names(now))
	}
	if len(files(t, after, "/log", ".seg")) > 0 {
		if err := verify(t, after); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	if err := l.bring(after); err != nil {
		return fmt.Errorf("again: %w", err)
	}
	if now := snapshot(t, after); !maps.Equal(now, l.fresh) {
		return fmt.Errorf("not the new directory in the end: %v", names(now))
	}
	if names, err := after.List("/incoming"); !errors.Is(err, fs.ErrNotExist) && len(names) > 0 {
		return fmt.Errorf("left behind: %v", names)
	}
	return verify(t, after)
}

func names(files map[string]string) (out []string) {
	for name, b := range files {
		out = append(out, fmt.Sprintf("%s (%d)", name, len(b)))
	}
	return out
}

// Whatever fails is told, and is made good by the next try. A full disk is one
// of these: the node goes on, and what has come stays.
func TestFailAnywhere(t *testing.T) {
	for _, l := range laggings(t) {
		for at := 1; at <= l.ops; at += every(1, 5) {
			disk := l.disk.Clone()
			disk.FailAt(at, syscall.ENOSPC)
			err := l.bring(disk)
			require.False(t, err != nil && !errors.Is(err, syscall.ENOSPC),
				"%s: operation %d: %v", l.name, at, err)
			require.NoError(t, l.bring(disk), "%s: operation %d, again", l.name, at)
			if now := snapshot(t, disk); !maps.Equal(now, l.fresh) {
				t.Fatalf("%s: operation %d: not the new directory in the end: %v", l.name, at, names(now))
			}
		}
	}
}

// A byte that is flipped on its way is found, wherever it is: its source is
// dropped, and another brings the rest.
func TestFlippedByte(t *testing.T) {
	for _, l := range laggings(t) {
		l.peer.serve(l.net, "b")
		for at := int64(0); at < l.sent; at += int64(every(211, 1055)) {
			seen := int64(0)
			l.net.bend = func(s answer) answer {
				if s.name == callList || s.addr != "a" {
					return s
				}
				if i := at - seen; i >= 0 && i < int64(len(s.b)) {
					s.b = bytes.Clone(s.b)
					s.b[i] ^= 1 << (at % 8)
				}
				seen += int64(len(s.b))
				return s
			}
			alone := l.disk.Clone()
			if _, err := fetch(t, l.net, alone, l.meta, "a"); err == nil {
				t.Fatalf("%s: byte %d: %v", l.name, at, err)
			}
			seen = 0
			disk := l.disk.Clone()
			p := mustFetch(t, l.net, disk, l.meta, "a", "b")
			require.True(t, install(t, disk, p) && maps.Equal(snapshot(t, disk), l.fresh),
				"%s: byte %d: not the new directory", l.name, at)
		}
	}
}

// A wrong list of segments never leads to a wrong directory.
func TestFlippedList(t *testing.T) {
	for _, l := range laggings(t) {
		for at, end := 0, false; !end; at += every(3, 15) {
			end = true // where no list is asked for
			l.net.bend = func(s answer) answer {
				if s.name == callList {
					if end = at >= len(s.b); !end {
						s.b = bytes.Clone(s.b)
						s.b[at] ^= 1 << (at / 3 % 3)
					}
				}
				return s
			}
			disk := l.disk.Clone()
			p, err := fetch(t, l.net, disk, l.meta, "a")
			if done := install(t, disk, p); done != (err == nil) {
				t.Fatalf("%s: byte %d: installed: %v, %v", l.name, at, done, err)
			}
			if now := snapshot(t, disk); !maps.Equal(now, l.fresh) && !maps.Equal(now, l.old) {
				t.Fatalf("%s: byte %d: neither the old nor the new directory", l.name, at)
			}
		}
	}
}

// Answers that end too early: what came whole stays, and the next Fetch goes on after it.
func TestCutShort(t *testing.T) {
	for _, l := range laggings(t) {
		rng := rand.New(rand.NewPCG(3, 4))
		whole := map[string]int{}
		l.net.bend = func(s answer) answer {
			if s.name != callList && rng.IntN(4) > 0 && len(s.b) > 0 {
				s.b, s.err = s.b[:rng.IntN(len(s.b))], errors.New("connection reset")
			} else {
				whole[s.name]++
			}
			return s
		}
		disk := l.disk.Clone()
		p, err := fetch(t, l.net, disk, l.meta, "a")
		for err != nil {
			p, err = fetch(t, l.net, disk, l.meta, "a")
		}
		require.True(t, install(t, disk, p) && maps.Equal(snapshot(t, disk), l.fresh),
			"%s: not the new directory", l.name)
		delete(whole, callList)
		for name, n := range whole {
			assert.Equal(t, n, 1, "%s: %s came whole", l.name, name)
		}
	}
}

// TestSegmentCrashAnywhere: a damaged segment is fetched and put in place. A crash in each write,
// sync, creation, rename and removal leaves the damaged file or the right one, whole.
func TestSegmentCrashAnywhere(t *testing.T) {
	n, net, _ := served(t, 5, 25, "a")
	disk := n.copy()
	damaged := n.log.Segments()[1]
	name := "/log/" + damaged.Name
	right := disk.Get(name)
	wrong := bytes.Clone(right)
	wrong[len(wrong)/2] ^= 1
	disk.Put(name, wrong)
	// Without it, opening the log would read the whole segment.
	scanned, err := log.ScanSegment(t.Context(), n.disk, "/log", damaged.Name, -1, nil)
	must(t, err)
	disk.Put("/log/"+damaged.SideFile, scanned.Side)
	repair := func(disk *memdisk.Disk) error {
		l, err := log.Open(log.Options{FS: disk, Dir: "/log"})
		if err != nil {
			return err
		}
		defer l.Close()
		if err := l.Check(t.Context(), damaged.First, nil); !log.IsDamage(err) {
			return err
		}
		o := optionsOf(net, disk, checkpoint.Meta{}, "nobody", "a")
		if err = Segment(t.Context(), o, damaged); err == nil {
			err = l.Replace(damaged, "/incoming/"+damaged.Name)
		}
		if err == nil {
			err = l.Check(t.Context(), damaged.First, nil)
		}
		return errors.Join(err, Discard(disk, "/"))
	}
	whole := disk.Clone()
	must(t, repair(whole))
	must(t, verify(t, whole))
	for at := 1; at <= whole.Ops(); at++ {
		for _, loss := range losses(at) {
			disk := disk.Clone()
			disk.CrashAt(at)
			_ = repair(disk) // the crash may come when the segment is in place already
			after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
			b := after.Get(name)
			require.True(t, bytes.Equal(b, right) || bytes.Equal(b, wrong),
				"crash at operation %d, loss %d: neither the old nor the new file", at, loss)
			require.NoError(t, repair(after), "crash at operation %d, loss %d", at, loss)
			require.NoError(t, verify(t, after), "crash at operation %d, loss %d", at, loss)
		}
	}
}

// TestSegmentOfOthers: a copy that is damaged too, or has another history, is not taken.
func TestSegmentOfOthers(t *testing.T) {
	n, other, net := newNode(t, 5).grow(25), newNode(t, 5), newNet()
	other.clock++ // a history of the same sizes
	other.grow(25).serve(net, "other")
	n.serve(net, "a")
	sealed := n.log.Segments()[1]
	disk := memdisk.New()
	for _, from := range []string{"nobody", "other", "a"} {
		err := Segment(t.Context(), optionsOf(net, disk, checkpoint.Meta{}, from), sealed)
		require.Equal(t, err == nil, from == "a", "from %s: %v", from, err)
	}
	net.bend = func(a answer) answer { a.b = bytes.Clone(a.b); a.b[len(a.b)/2] ^= 1; return a }
	must(t, Discard(disk, "/"))
	err := Segment(t.Context(), optionsOf(net, disk, checkpoint.Meta{}, "a"), sealed)
	require.True(t, log.IsDamage(err), "from a damaged node: %v", err)
	err = Segment(t.Context(), optionsOf(net, disk, checkpoint.Meta{}), sealed)
	require.True(t, errors.Is(err, errNoSource), "alone: %v", err)
}
