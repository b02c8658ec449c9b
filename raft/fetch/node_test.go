package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/replay"
)

const cluster = "01HGW2N7Q0000000000000000A"

// node is what a node without Raft has on its disk, under /.
type node struct {
	t     testing.TB
	disk  *memdisk.Disk
	log   *log.Log
	m     *fsm.Machine
	index uint64
	clock int64
	rng   *rand.Rand
	stop  func()
	lease []event.ID
}

const segmentBytes = 4 << 10

var silent = slog.New(slog.DiscardHandler)

// must fails the test on an error.
var must = require.NoError

// newNode makes a node whose history follows from the seed.
func newNode(t testing.TB, seed uint64) *node {
	t.Helper()
	n := &node{t: t, disk: memdisk.New(), index: 2, clock: 1_700_000_000_000, rng: rand.New(rand.NewPCG(seed, 7))}
	must(t, errors.Join(n.disk.MkdirAll("/log"), n.disk.MkdirAll("/checkpoints")))
	n.open(projections.New())
	return n
}

func (n *node) open(state *projections.State) {
	n.t.Helper()
	var err error
	n.log, err = log.Open(log.Options{FS: n.disk, Dir: "/log", SegmentSize: segmentBytes})
	must(n.t, err)
	n.t.Cleanup(func() { n.log.Close() })
	n.m = fsm.New(state, n.log)
}

// do applies one entry.
func (n *node) do(commands ...*event.Command) {
	n.t.Helper()
	n.index += 1 + uint64(n.rng.IntN(3)/2)
	n.clock += int64(n.rng.IntN(400))
	e := &event.Entry{Rules: event.Rules, Time: n.clock}
	for _, c := range commands {
		e.Commands = append(e.Commands, event.EncodeCommand(c))
	}
	results, err := n.m.Apply(n.index, e.Encode())
	must(n.t, err)
	for _, r := range results {
		require.False(n.t, r.Problem != nil && r.Problem.Code != event.CodeLeaseLost,
			"entry %d: %v", n.index, r.Problem)
		for _, m := range r.Leased {
			n.lease = append(n.lease, m.Lease)
		}
	}
}

// grow makes a history.
func (n *node) grow(entries int) *node {
	n.t.Helper()
	if n.log.Head() == 0 {
		n.do(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: event.DefaultPolicy(), DeadLetterAuto: true}})
	}
	for i := range entries {
		p := &event.Produce{Queue: "q"}
		for k := range 1 + n.rng.IntN(3) {
			text := fmt.Sprintf(`"%d-%d %s"`, i, k, strings.Repeat("x", n.rng.IntN(200)))
			p.Messages = append(p.Messages, event.NewMessage{Priority: 5, Size: uint32(len(text)), Content: event.EncodeContent(&event.Content{Payload: []byte(text)})})
		}
		commands := []*event.Command{{Produce: p}}
		if n.rng.IntN(2) == 0 {
			commands = append(commands, &event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 2}})
		}
		if len(n.lease) > 0 && n.rng.IntN(2) == 0 {
			id := n.lease[n.rng.IntN(len(n.lease))]
			commands = append(commands, &event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpAck, Lease: id}}}})
		}
		n.do(commands...)
	}
	return n
}

// checkpoint writes one of the state as it is.
func (n *node) checkpoint() checkpoint.Meta {
	n.t.Helper()
	must(n.t, n.log.Sync())
	f := n.m.Freeze()
	defer f.Release()
	index, chain := n.log.Tip()
	meta := checkpoint.Meta{
		Index: index + 1, Term: 2, SnapshotVersion: 1, Configuration: []byte("members"), ConfigurationIndex: 1,
		HeadIndex: index, Chain: chain, Clock: f.Clock(), Digest: f.Digest(), ClusterID: cluster, CreatedAt: n.clock,
	}
	must(n.t, checkpoint.Write(n.disk, "/checkpoints", meta, f))
	meta.Size = int64(len(n.disk.Get("/checkpoints/" + meta.Name())))
	n.index = max(n.index, meta.Index)
	return meta
}

// newest returns the newest checkpoint on disk.
func (n *node) newest() checkpoint.Meta {
	n.t.Helper()
	metas, _, err := checkpoint.List(n.disk, "/checkpoints")
	must(n.t, err)
	return metas[0]
}

// thin keeps only the newest checkpoints.
func (n *node) thin(keep int) {
	n.t.Helper()
	metas, _, err := checkpoint.List(n.disk, "/checkpoints")
	must(n.t, err)
	for _, m := range metas[min(keep, len(metas)):] {
		must(n.t, vfs.Remove(n.disk, "/checkpoints", m.Name()))
	}
}

// retain lets the history before the last segments go, and deletes it.
func (n *node) retain(segments int) {
	n.t.Helper()
	all := n.log.Segments()
	cut := all[max(len(all)-segments, 0)].First
	carry := &event.Carry{}
	n.m.View(func(st *projections.State) {
		st.All(func(m event.MessageView) bool {
			if m.Content.Index < cut+64 {
				carry.Items = append(carry.Items, event.CarryItem{ID: m.ID, From: m.Content})
			}
			return true
		})
	})
	for i := range carry.Items {
		e, err := n.log.Event(carry.Items[i].From)
		must(n.t, err)
		carry.Items[i].Content = e.Content
	}
	n.index += 64 // what is needed is counted by so many indexes
	n.do(&event.Command{Carry: carry})
	n.do(&event.Command{Retain: &event.Retain{Before: cut}})
	require.Equal(n.t, n.m.History(), cut, "history is let go of before")
	must(n.t, n.log.Sync())
	must(n.t, n.log.DeleteBefore(cut))
}

// copy returns the node's disk, all of it synced, as a stopped node leaves it.
func (n *node) copy() *memdisk.Disk {
	n.t.Helper()
	must(n.t, n.log.Sync())
	return n.disk.Clone()
}

// serve makes the node answer at these addresses.
func (n *node) serve(net *memNet, addrs ...string) *node {
	for _, addr := range addrs {
		n.stop = Serve(net.at(addr).Handle, Source{FS: n.disk, DataDir: "/", Log: n.log,
			Snapshot: func() error { n.checkpoint(); return nil }, Logger: silent})
	}
	return n
}

// served returns a node with so many entries, its checkpoint, and a network where it answers.
func served(t testing.TB, seed uint64, entries int, addrs ...string) (
	*node, *memNet, checkpoint.Meta) {
	t.Helper()
	n, net := newNode(t, seed).grow(entries), newNet()
	return n.serve(net, addrs...), net, n.checkpoint()
}

// memNet is a network in memory. It serves one call at a time.
type memNet struct {
	nodes map[string]handlers
	sent  int64               // bytes of files
	files []string            // what was sent
	bend  func(answer) answer // what happens to an answer on its way
	next  error               // of the next read: an answer was cut short
}

type answer struct {
	addr, name string // name is callList, or a file's path
	b          []byte
	err        error // behind b
}

func newNet() *memNet { return &memNet{nodes: map[string]handlers{}} }

type handlers map[string]peer.Handler

func (n *memNet) at(addr string) handlers {
	if n.nodes[addr] == nil {
		n.nodes[addr] = handlers{}
	}
	return n.nodes[addr]
}

func (h handlers) Handle(_ context.Context, name string, f peer.Handler) { h[name] = f }

var errNobody = errors.New("nobody is there")

func (n *memNet) Call(ctx context.Context, to peer.Target, name string, body []byte) (
	[]byte, peer.Identity, error) {
	h := n.at(to.Addr)[name]
	if h == nil {
		return nil, peer.Identity{}, errNobody
	}
	a := answer{addr: to.Addr, name: name, err: n.next}
	if n.next = nil; a.err == nil {
		a.b, a.err = h(ctx, peer.Identity{}, body)
	}
	if name == callRead {
		var q readRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, peer.Identity{}, err
		}
		a.name = q.File
	}
	if a.err == nil && n.bend != nil {
		a = n.bend(a)
	}
	if name == callRead {
		n.sent += int64(len(a.b))
		n.files = append(n.files, a.name)
		if len(a.b) > 0 {
			n.next, a.err = a.err, nil
		}
	}
	return a.b, peer.Identity{}, a.err
}

// fetch runs a Fetch of a checkpoint to disk from the addresses.
func fetch(t testing.TB, net peer.Caller, disk vfs.FS, c checkpoint.Meta, from ...string) (*Plan, error) {
	t.Helper()
	return Fetch(context.Background(), optionsOf(net, disk, c, from...))
}

// mustFetch is a fetch that succeeds.
func mustFetch(t testing.TB, net peer.Caller, disk vfs.FS, c checkpoint.Meta, from ...string) *Plan {
	t.Helper()
	p, err := fetch(t, net, disk, c, from...)
	must(t, err)
	return p
}

func optionsOf(net peer.Caller, disk vfs.FS, c checkpoint.Meta, from ...string) Options {
	o := Options{Net: net, Checkpoint: c, FS: disk, DataDir: "/", Logger: silent}
	for _, a := range from {
		o.From = append(o.From, peer.Target{Addr: a, Node: a})
	}
	return o
}

// files returns the files in a directory by name; a missing one has none.
func files(t testing.TB, disk *memdisk.Disk, dir string, suffix string) map[string]string {
	t.Helper()
	out := map[string]string{}
	names, err := disk.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out
	}
	must(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			out[name] = string(disk.Get(path.Join(dir, name)))
		}
	}
	return out
}

// sameAsSource tells what a directory lacks of being the source's as of a
// checkpoint, from the index on at which the source's log begins.
func sameAsSource(t testing.TB, disk *memdisk.Disk, n *node, c checkpoint.Meta) error {
	t.Helper()
	segments, err := n.log.SegmentsTo(c.HeadIndex)
	must(t, err)
	last := segments[len(segments)-1]
	segment, end := last.Name, last.Size
	have := files(t, disk, "/log", ".seg")
	for name, b := range files(t, n.disk, "/log", ".seg") {
		switch {
		case name > segment:
			if _, ok := have[name]; ok {
				return fmt.Errorf("segment %s lies behind the checkpoint", name)
			}
			continue
		case name == segment:
			b = b[:end]
		}
		if have[name] != b {
			return fmt.Errorf("segment %s: %d bytes, the source's has %d", name, len(have[name]), len(b))
		}
	}
	for name := range have {
		if name > segment {
			return fmt.Errorf("segment %s lies behind the checkpoint", name)
		}
	}
	name := "/checkpoints/" + c.Name()
	if !bytes.Equal(disk.Get(name), n.disk.Get(name)) {
		return fmt.Errorf("%s is another", name)
	}
	if names, err := disk.List("/incoming"); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("incoming/ stays: %v, %v", names, err)
	}
	return nil
}

// verify runs the whole verification of qlogd replay --verify.
func verify(t testing.TB, disk *memdisk.Disk) error {
	t.Helper()
	_, err := replay.Verify(t.Context(), disk, "/", nil, nil)
	return err
}

func install(t testing.TB, disk vfs.FS, p *Plan) bool {
	t.Helper()
	ok, err := Install(disk, "/", p, silent)
	must(t, err)
	return ok
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return b
}
