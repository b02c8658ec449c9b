package fetch

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/raft/peer"
)

// No segments are listed for a checkpoint from before history was deleted: its state would
// need contents that are not there. The source writes a newer one.
func TestCheckpointKnowsWhatIsGone(t *testing.T) {
	n, net, old := served(t, 13, 60, "a")
	n.retain(3)
	disk := memdisk.New()
	if _, err := fetch(t, net, disk, old, "a"); !errors.Is(err, errUseless) {
		t.Fatal(err)
	}
	require.True(t, install(t, disk, mustFetch(t, net, disk, n.newest(), "a")), "not installed")
	must(t, verify(t, disk))
}

// A node whose event log has changed since a fetch, or that has discarded the files, keeps what
// it has.
func TestPlanThatIsTooLate(t *testing.T) {
	for name, late := range map[string]func(n *node, disk *memdisk.Disk){
		"the log went on": func(n *node, disk *memdisk.Disk) {
			for name, b := range files(n.t, n.grow(30).copy(), "/log", "") {
				disk.Put("/log/"+name, []byte(b))
			}
		},
		"the log is gone": func(_ *node, disk *memdisk.Disk) {
			for name := range files(t, disk, "/log", "") {
				must(t, disk.Remove("/log/"+name))
			}
		},
		"the files are discarded": func(_ *node, disk *memdisk.Disk) { must(t, Discard(disk, "/")) },
	} {
		t.Run(name, func(t *testing.T) {
			n, net, _ := served(t, 14, 40, "a")
			disk := n.copy()
			meta := n.grow(30).checkpoint()
			p := mustFetch(t, net, disk, meta, "a")
			late(n, disk)
			before := files(t, disk, "/log", "")
			assert.False(t, install(t, disk, p), "installed")
			if after := files(t, disk, "/log", ""); !maps.Equal(after, before) {
				t.Errorf("the log has changed: %d files, %d before", len(after), len(before))
			}
		})
	}
}

// The source goes on working under a fetch: it rotates, takes checkpoints, thins
// them out and deletes its oldest segments.
func TestSourceMovesOn(t *testing.T) {
	for name, every := range map[string]int{"now and then": 5, "often": 3} {
		t.Run(name, func(t *testing.T) {
			n, net, _ := served(t, 11, 80, "a")
			asked := 0
			net.bend = func(s answer) answer {
				if asked++; s.name != callList && asked%every == 0 && asked < 60 {
					n.grow(6)
					n.retain(8)
					n.checkpoint()
					n.thin(1)
				}
				return s
			}
			disk := memdisk.New()
			p, err := fetch(t, net, disk, n.newest(), "a")
			for tries := 0; err != nil; tries++ {
				require.True(t, tries <= 100, "%v", err)
				p, err = fetch(t, net, disk, n.newest(), "a")
			}
			require.True(t, install(t, disk, p), "not installed")
			must(t, verify(t, disk))
			metas, _, err := checkpoint.List(disk, "/checkpoints")
			must(t, err)
			if chain, err := n.log.ChainAt(metas[0].HeadIndex); len(metas) != 1 || err != nil || chain != metas[0].Chain {
				t.Errorf("checkpoints %v are not of the source's log: %v", metas, err)
			}
		})
	}
}

// What has come is not brought again: not from another source, not for a newer
// checkpoint, and not the whole segments of the local log.
func TestOnlyTheMissingIsSent(t *testing.T) {
	n, net, first := served(t, 12, 60, "a", "b")
	disk := memdisk.New()
	mustFetch(t, net, disk, first, "a")
	net.sent = 0
	mustFetch(t, net, disk, first, "a")
	assert.Equal(t, net.sent, 0, "bytes came for nothing")
	// The newest segment has grown since, and others came after it.
	grown := n.log.Segments()
	net.files = nil
	second := n.grow(20).checkpoint()
	p := mustFetch(t, net, disk, second, "b")
	assert.Equal(t, net.files[0], "log/"+grown[len(grown)-1].Name, "what came: %v", net.files)
	require.True(t, install(t, disk, p), "not installed")
	must(t, errors.Join(sameAsSource(t, disk, n, second), verify(t, disk)))
	// And once more, behind the whole segments that are in place.
	net.files = nil
	last := n.log.Segments()
	third := n.grow(20).checkpoint()
	p = mustFetch(t, net, disk, third, "a")
	assert.Equal(t, net.files[0], "log/"+last[len(last)-1].Name, "what came: %v", net.files)
	require.True(t, install(t, disk, p), "not installed")
	must(t, errors.Join(sameAsSource(t, disk, n, third), verify(t, disk)))
}

// Each source is asked in turn; the error is ErrDiffers only if all say so.
func TestSources(t *testing.T) {
	_, net, meta := served(t, 15, 40, "liar", "good")
	net.bend = func(s answer) answer {
		if s.addr == "liar" && s.name != callList {
			s.b = bytes.Repeat([]byte{7}, len(s.b))
		}
		return s
	}
	mustFetch(t, net, memdisk.New(), meta, "nobody", "liar", "good")
	_, err := fetch(t, net, memdisk.New(), meta, "nobody", "liar")
	if _, wrong := errors.AsType[*log.CorruptionError](err); !wrong || !errors.Is(err, errNobody) {
		t.Error(err)
	}
	other := newNode(t, 99).grow(20).copy()
	if _, err := fetch(t, net, other, meta, "liar", "good"); !errors.Is(err, ErrDiffers) {
		t.Error(err)
	}
	if _, err := fetch(t, net, other, meta, "good", "nobody"); errors.Is(err, ErrDiffers) || !errors.Is(err, errNobody) {
		t.Error(err)
	}
}

func TestNoRoom(t *testing.T) {
	_, net, meta := served(t, 16, 40, "a")
	disk := memdisk.New()
	o := optionsOf(net, disk, meta, "a")
	o.FreeBytes = func() (uint64, error) { return reserveBytes + 5000, nil }
	if _, err := Fetch(t.Context(), o); !errors.Is(err, syscall.ENOSPC) || net.sent > 0 {
		t.Errorf("%v, %d bytes came", err, net.sent)
	}
	o.FreeBytes = func() (uint64, error) { return 1 << 30, nil }
	p, err := Fetch(t.Context(), o)
	must(t, err)
	assert.True(t, install(t, disk, p), "not installed")
}

func TestServeRefuses(t *testing.T) {
	n, mem, meta := served(t, 17, 30, "a")
	name := n.log.Segments()[0].Name
	read := func(q readRequest) ([]byte, error) {
		b, _, err := mem.Call(t.Context(), peer.Target{Addr: "a"}, callRead, encode(t, q))
		return b, err
	}
	for _, file := range []string{
		"", "/", "log/", "node.json", "log/../node.json", "checkpoints/../node.json", "log/" + strings.TrimSuffix(name, ".seg") + ".idx",
		"checkpoints/" + name, "log/" + meta.Name(), "checkpoints/" + meta.Name() + ".tmp", "checkpoints/" + (&checkpoint.Meta{Index: 1, Term: 1}).Name(),
		"log/" + log.SegmentName(1<<40), "incoming/" + name, "/log/" + name,
	} {
		if b, err := read(readRequest{file, 0, 10}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %d bytes, %v", file, len(b), err)
		}
	}
	for _, file := range []string{"log/" + name, "checkpoints/" + meta.Name()} {
		if b, err := read(readRequest{file, 3, 10}); err != nil || string(b) != string(n.disk.Get("/" + file)[3:13]) {
			t.Errorf("%s: %q, %v", file, b, err)
		}
		for _, q := range []readRequest{{file, 0, 0}, {file, -1, 9}, {file, 0, 99999}, {file, 1 << 62, 1 << 62}} {
			if b, err := read(q); err == nil {
				t.Errorf("%+v: %d bytes", q, len(b))
			}
		}
	}
	wrong := listRequest{HeadIndex: meta.HeadIndex, Chain: event.Chain{1}}
	for _, body := range []string{"", "[]", "{} {}", string(encode(t, wrong)), `{"head_index":1000000}`} {
		if _, _, err := mem.Call(t.Context(), peer.Target{Addr: "a"}, callList, []byte(body)); err == nil {
			t.Errorf("answered %s", body)
		}
	}
	n.stop()
	_, err := read(readRequest{"log/" + name, 3, 10})
	require.ErrorIs(t, err, context.Canceled, "it was stopped:")
}

// A source that answers no read is given up.
func TestStuckSourceIsGivenUp(t *testing.T) {
	_, mem, meta := served(t, 20, 10, "a")
	mem.at("a")[callRead] = func(ctx context.Context, _ peer.Identity, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := Fetch(t.Context(), optionsOf(mem, memdisk.New(), meta, "a"))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != idleTime {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// INSTALL's bytes are frozen: a later program must finish what this one began.
func TestPlanBytes(t *testing.T) {
	r := &Plan{
		Replace: true, Cluster: cluster,
		Checkpoint: Checkpoint{Name: "00000000000000000009-00000000000000000002.ckpt", Size: 5, Index: 9, Term: 2, HeadIndex: 8, Chain: event.Chain{2}},
		extent:     extent{PrevIndex: 4, PrevChain: event.Chain{1}, Segments: []log.SegmentInfo{{Name: "00000000000000000005.seg", First: 5, Last: 8, Size: 200, Chain: event.Chain{2}}}},
	}
	b := r.encode()
	const zeros = "0000000000000000000000000000000000000000000000000000000000000"
	want := `{"format":1,"cluster":"01HGW2N7Q0000000000000000A","checkpoint":{"name":"00000000000000000009-00000000000000000002.ckpt","size":5,"index":9,"term":2,"head_index":8,"chain":"02` + zeros + `0"},` +
		`"prev_index":4,"prev_chain":"01` + zeros + `0","segments":[{"name":"00000000000000000005.seg","first":5,"last":8,"size":200,"chain":"02` + zeros + `0"}],"replace":true}`
	assert.Equal(t, string(b), "fe78991f\n"+want, "%q, want\n%q", b, want)
	if _, err := decodePlan(b); err != nil {
		t.Error(err)
	}
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 0x10
		if _, err := decodePlan(c); err == nil {
			t.Errorf("byte %d is not noticed", i)
		}
		if _, err := decodePlan(b[:i]); err == nil {
			t.Errorf("cut to %d bytes, and not noticed", i)
		}
	}
}
