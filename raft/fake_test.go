package raft

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft-wal/types"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/filekv"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// block is what the fake machine keeps of an entry.
type block struct {
	Index uint64
	Time  int64
	Names []string
	Rules uint16 `json:",omitzero"` // that it brought
}

// fakeMachine is a Machine whose event log is one file without a sync of its
// own, as log/ has it: what SyncLog did not cover, a crash may take. A command
// is a PutQueue; its name is the payload. A name "due+50" makes something due 50
// ms after its entry, "fail" an error of Apply.
type fakeMachine struct {
	f vfs.File

	mu     sync.Mutex
	size   int64
	blocks []block
	chain  [32]byte
	chains [][32]byte // after each block
	clock  int64
	dues   []int64
	fired  int // due things that happened
	hold   chan struct{}
	bound  int // due things that happen in one entry; 0 all
	rules  uint16
	bend   int // as if something had been folded wrong
}

func openFake(t testing.TB, fsys vfs.FS, name string) *fakeMachine {
	m, err := tryFake(fsys, name)
	require.NoError(t, err)
	return m
}

func tryFake(fsys vfs.FS, name string) (*fakeMachine, error) {
	m := &fakeMachine{}
	f, err := fsys.OpenReadWrite(name)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = fsys.Create(name); err == nil {
			err = fsys.SyncDir("/")
		}
	}
	if err != nil {
		return nil, err
	}
	m.f = f
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	for line := range bytes.Lines(b) {
		var bl block
		if len(line) < 9 || !bytes.Equal(line, sealed(line[8:len(line)-1])) {
			break
		}
		if err := json.Unmarshal(line[8:], &bl); err != nil {
			return nil, err
		}
		m.fold(bl)
		m.size += int64(len(line))
	}
	return m, f.Truncate(m.size)
}

// sealed is the line of a block, which begins with its checksum.
func sealed(block []byte) []byte {
	return fmt.Appendf(nil, "%08x%s\n", crc32.ChecksumIEEE(block), block)
}

// write appends a block.
func (m *fakeMachine) write(b block) error {
	text, _ := json.Marshal(b)
	line := sealed(text)
	if _, err := m.f.WriteAt(line, m.size); err != nil {
		return err
	}
	m.size += int64(len(line))
	m.fold(b)
	return nil
}

func (m *fakeMachine) fold(b block) {
	m.blocks = append(m.blocks, b)
	m.clock = max(m.clock, b.Time)
	m.rules = max(m.rules, b.Rules, 1)
	h := sha256.New()
	h.Write(m.chain[:])
	fmt.Fprint(h, b)
	h.Sum(m.chain[:0])
	m.chains = append(m.chains, m.chain)
	left := m.dues[:0]
	until := m.fired + cmp.Or(m.bound, math.MaxInt32)
	for _, d := range m.dues {
		if d <= m.clock && m.fired < until {
			m.fired++
		} else {
			left = append(left, d)
		}
	}
	m.dues = left
	for _, n := range b.Names {
		if ms, ok := strings.CutPrefix(n, "due+"); ok {
			v, _ := strconv.ParseInt(ms, 10, 64)
			m.dues = append(m.dues, b.Time+v)
		}
	}
}

func (m *fakeMachine) Apply(index uint64, entry []byte) ([]event.Result, error) {
	if m.hold != nil {
		<-m.hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.blocks) > 0 && index <= m.blocks[len(m.blocks)-1].Index {
		return nil, nil
	}
	e, err := event.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	b := block{Index: index, Time: max(e.Time, m.clock)}
	var out []event.Result
	for i, c := range e.Commands {
		var cmd event.Command
		if err := cmd.Decode(c); err != nil {
			return nil, err
		}
		if cmd.Upgrade != nil {
			b.Rules = cmd.Upgrade.Rules
			out = append(out, event.Result{Index: index})
			continue
		}
		if cmd.Mark != nil { // answered below
			out = append(out, event.Result{Index: index, Digest: [16]byte{1}})
			continue
		}
		name := cmd.Actor
		if cmd.PutQueue != nil {
			name = cmd.PutQueue.Name
		}
		if name == "fail" {
			return nil, errors.New("the fake fails")
		}
		b.Names = append(b.Names, name)
		out = append(out, event.Result{Index: index, Count: int64(i)})
	}
	if out == nil {
		out = []event.Result{}
	}
	if err := m.write(b); err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].Digest != [16]byte{} {
			out[i].Digest = m.digest()
		}
	}
	return out, nil
}

func (m *fakeMachine) Tip() (uint64, [32]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.blocks) == 0 {
		return 0, [32]byte{}
	}
	return m.blocks[len(m.blocks)-1].Index, m.chain
}

func (m *fakeMachine) Sync() error { return m.f.Sync() }

func (m *fakeMachine) Clock() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clock
}

// digest covers what a chain does not: how it was folded.
func (m *fakeMachine) digest() [16]byte {
	s := sha256.Sum256(fmt.Append(nil, len(m.blocks), m.clock, m.fired, m.bend))
	return [16]byte(s[:16])
}

func (m *fakeMachine) Rules() uint16 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.rules, 1)
}

func (m *fakeMachine) NextDue() (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.dues) == 0 {
		return 0, false
	}
	return slices.Min(m.dues), true
}

type fakeFrozen struct {
	body  []byte
	clock int64
}

func (m *fakeMachine) Freeze() checkpoint.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, _ := json.Marshal(m.blocks) // a list of plain structs
	return fakeFrozen{b, m.clock}
}

func (f fakeFrozen) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(f.body)
	return int64(n), err
}
func (f fakeFrozen) Digest() [16]byte {
	s := sha256.Sum256(f.body)
	return [16]byte(s[:16])
}
func (f fakeFrozen) Clock() int64 { return f.clock }
func (f fakeFrozen) Release()     {}

func (m *fakeMachine) ChainAt(index uint64) ([32]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	chain, err := [32]byte{}, log.ErrNotFound
	for i, b := range m.blocks {
		if b.Index <= index {
			chain = m.chains[i]
		}
		if b.Index >= index {
			err = nil
		}
	}
	return chain, err
}

// names returns all names in the order in which they were applied.
func (m *fakeMachine) names() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.blocks {
		out = append(out, b.Names...)
	}
	return out
}

func (m *fakeMachine) times() (out []int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.blocks {
		out = append(out, b.Time)
	}
	return out
}

// put is a command of the settle class, produceOf, leaseOf and retain are of
// the others; all carry a name.
func put(name string) *event.Command {
	return &event.Command{PutQueue: &event.PutQueue{Name: name}}
}

func produceOf(name string) *event.Command {
	return &event.Command{Actor: name, Produce: &event.Produce{Queue: name,
		Messages: []event.NewMessage{{}}}}
}

func leaseOf(name string) *event.Command {
	return &event.Command{Actor: name, Lease: &event.Lease{Queues: []string{name}, Max: 1}}
}

func background(name string) *event.Command {
	return &event.Command{Actor: name, Retain: &event.Retain{Before: 1}}
}

// node is one replica under test, and its disk.
type node struct {
	*Replica
	t    testing.TB
	fsys vfs.FS
	m    *fakeMachine
	o    Options
	died chan error
}

// untilApplied waits for something that entries bring about, looking behind each.
func (n *node) untilApplied(ok func() bool) {
	n.t.Helper()
	for more := n.fsm.progress().index + 1; !ok(); more = n.fsm.progress().index + 1 {
		require.NoError(n.t, n.b.waitApplied(n.t.Context(), more))
	}
}

// on returns options for a node on a disk in memory.
func on(fsys vfs.FS) Options {
	return Options{
		Node: datadir.Node{NodeID: "n1", ClusterID: "c1", Initial: []datadir.Member{{ID: "n1"}}},
		Dir:  "/raft", CheckpointDir: "/checkpoints", FS: fsys,
		OpenKV:           func(name string) (types.MetaStore, error) { return filekv.Open(fsys, name) },
		SnapshotInterval: -1, SegmentBytes: 16 << 10,
		HeartbeatTimeout: 200 * time.Millisecond,
		OnJoined:         func() {}, OnFatal: func(err error) { panic(err) },
	}
}

// boot starts a node and waits until it leads.
func boot(t testing.TB, o Options) *node {
	t.Helper()
	n, err := tryBoot(t, o)
	require.NoError(t, err)
	n.ready()
	return n
}

// lonely is the network of a node that has no peers.
func lonely(t testing.TB, node, incarnation, cluster string) *peer.Net {
	t.Helper()
	network := memnet.New(memnet.Options{})
	l, err := network.Listen(node + ":7071")
	require.NoError(t, err)
	n, err := peer.New(peer.Options{
		Listener: l, Dial: network.Dialer(node),
		Self: peer.Identity{Cluster: cluster, Node: node, Incarnation: incarnation,
			Raft: node + ":7071"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func tryBoot(t testing.TB, o Options) (*node, error) {
	if o.Net == nil {
		o.Net = lonely(t, o.NodeID, o.Incarnation, o.ClusterID)
	}
	m, err := tryFake(o.FS, "/events")
	if err != nil {
		return nil, err
	}
	if o.Witness == nil {
		o.Witness, err = witness.Open(o.FS, path.Join(path.Dir(o.Dir), witness.FileName), &o.Node)
		if err != nil {
			return nil, err
		}
	}
	if o.Machine == nil {
		o.Machine = m
	} else {
		m = o.Machine.(*fakeMachine)
	}
	n := &node{t: t, fsys: o.FS, m: m, o: o, died: make(chan error, 1)}
	o.OnFatal = func(err error) { n.died <- err }
	if n.Replica, err = Open(o); err != nil {
		return nil, err
	}
	t.Cleanup(n.down)
	return n, nil
}

// ready waits until the node leads and has applied an entry of its own.
func (n *node) ready() {
	n.t.Helper()
	if !n.leads() {
		n.t.Fatalf("the replica died: %v", <-n.died)
	}
}

// leads waits until the node is ready, and reports false if it dies before.
func (n *node) leads() bool {
	return n.b.poll(n.run.ctx, func() bool { return n.b.lead.ready })
}

// poll waits for a condition, which it evaluates under the lock each millisecond.
func (b *batcher) poll(ctx context.Context, ok func() bool) bool {
	for ctx.Err() == nil {
		b.mu.Lock()
		yes := ok()
		b.mu.Unlock()
		if yes {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// down stops the node in order.
func (n *node) down() {
	if err := n.Shutdown(context.Background()); err != nil {
		n.t.Logf("shutdown: %v", err)
	}
}

// again stops the node and starts it on the same disk.
func (n *node) again() *node {
	n.t.Helper()
	n.down()
	o := n.o
	o.Machine = nil
	return boot(n.t, o)
}

func (n *node) put(name string) event.Result {
	n.t.Helper()
	res, err := n.Propose(context.Background(), put(name))
	require.NoError(n.t, err, "put %s", name)
	return res
}

// refused proposes and returns why that was refused.
func (n *node) refused(ctx context.Context, c *event.Command) *event.Problem {
	n.t.Helper()
	_, err := n.Propose(ctx, c)
	return asProblem(n.t, err)
}

func asProblem(t testing.TB, err error) *event.Problem {
	t.Helper()
	var p *event.Problem
	require.True(t, errors.As(err, &p), "%v is no problem", err)
	return p
}

// notApplied holds an error against a problem's code, "" any, whose command was surely not applied.
func notApplied(t testing.TB, err error, code string) {
	t.Helper()
	if p := asProblem(t, err); p.Unknown || code != "" && p.Code != code {
		t.Errorf("%+v", p)
	}
}

func outcomeUnknown(t testing.TB, err error) {
	t.Helper()
	if p := asProblem(t, err); !p.Unknown {
		t.Errorf("%+v", p)
	}
}
