package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// The source goes on working under a fetch: it rotates, takes checkpoints, thins
// them out and deletes its oldest segments.
func TestSourceMovesOn(t *testing.T) {
	for name, every := range map[string]int{"now and then": 5, "often": 3, "all the time": 2} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 11).grow(80)
			n.checkpoint()
			net := newNet()
			n.serve(net, "a")
			asked := 0
			net.before = func(name string) {
				if asked++; name == callManifest || asked%every != 0 || asked > 60 {
					return
				}
				n.grow(6)
				n.retain(8)
				n.checkpoint()
				n.thin(1)
			}
			disk := vfs.NewMem()
			o := optionsOf(net, disk, 1, "a")
			o.Rounds = 100
			must(t, Fetch(t.Context(), o))
			if !install(t, disk) {
				t.Fatal("not installed")
			}
			if err := verify(t, disk); err != nil {
				t.Error(err)
			}
			metas, _, err := checkpoint.List(disk, "/checkpoints")
			must(t, err)
			if len(metas) != 1 || n.disk.Get("/checkpoints/"+metas[0].Name()) == nil {
				t.Errorf("checkpoints: %v", metas)
			}
			if chain, err := n.log.ChainAt(metas[0].HeadIndex); err != nil || chain != metas[0].Chain {
				t.Error("the checkpoint is not of the source's log")
			}
		})
	}
}

// What has come is not brought again: not after a stream that broke, not from
// another source, not for a newer checkpoint, and not what the local log has.
func TestResumeTransfersOnlyWhatIsMissing(t *testing.T) {
	n := newNode(t, 12).grow(60)
	first := n.checkpoint()
	net := newNet()
	n.serve(net, "a")
	n.stop = nil
	n.serve(net, "b")
	disk := vfs.NewMem()
	// A cancelled context in the middle of each stream, and a new process.
	whole := int64(len(n.disk.Get("/checkpoints/" + first.Name())))
	for _, s := range n.log.Segments() {
		whole += s.Size
	}
	for i := 0; ; i++ {
		ctx, cancel := context.WithCancel(t.Context())
		streams := 0
		net.bend = func(s stream) stream {
			if streams++; s.name != callManifest && streams > 2 {
				s.b, s.err = s.b[:len(s.b)/2], io.ErrUnexpectedEOF
				cancel()
			}
			return s
		}
		o := optionsOf(net, disk, first.Index, []string{"a", "b"}[i%2])
		var done, total int64
		o.Progress = func(d, n int64) {
			if d > n || n != whole {
				t.Errorf("%d of %d bytes, %d are needed", d, n, whole)
			}
			done, total = d, n
		}
		err := Fetch(ctx, o)
		cancel()
		if err == nil {
			if done != total {
				t.Errorf("%d of %d bytes in the end", done, total)
			}
			break
		}
		if i > 200 {
			t.Fatal(err)
		}
	}
	// A block that was begun comes again, each time a stream was cut.
	if extra := net.sent - whole; extra < 0 || extra > int64(len(net.streams))*1500 {
		t.Errorf("%d bytes came in %d streams, %d are needed", net.sent, len(net.streams), whole)
	}
	net.bend, net.sent, net.streams = nil, 0, nil

	// A READY that is newer than what is wanted is good, without a byte.
	must(t, fetch(t, net, disk, first.Index, "a"))
	if net.sent != 0 {
		t.Errorf("%d bytes came for nothing", net.sent)
	}
	// One that is too old is made newer: only what is behind its end comes.
	size := func() (n64 int64) {
		for _, s := range n.log.Segments() {
			n64 += s.Size
		}
		return n64
	}
	before := size()
	second := n.grow(20).checkpoint()
	must(t, fetch(t, net, disk, second.Index, "b"))
	if want := size() - before + int64(len(n.disk.Get("/checkpoints/"+second.Name()))); net.sent != want {
		t.Errorf("%d bytes came for the newer checkpoint, want %d", net.sent, want)
	}
	if !install(t, disk) {
		t.Fatal("not installed")
	}
	must(t, errors.Join(sameAsSource(t, disk, n, second), verify(t, disk)))
	// And once more, from what is in place.
	net.sent, before = 0, size()
	third := n.grow(20).checkpoint()
	must(t, fetch(t, net, disk, third.Index, "a"))
	if want := size() - before + int64(len(n.disk.Get("/checkpoints/"+third.Name()))); net.sent != want {
		t.Errorf("%d bytes came for what was behind, want %d", net.sent, want)
	}
	if !install(t, disk) {
		t.Fatal("not installed")
	}
	must(t, errors.Join(sameAsSource(t, disk, n, third), verify(t, disk)))
}

// What took long to bring is old when it is there: then the newer checkpoint is
// brought, with what lies between, until little does.
func TestTheNewestCheckpointIsBrought(t *testing.T) {
	n := newNode(t, 22).grow(60)
	n.checkpoint()
	net := newNet()
	n.serve(net, "a")
	var newest checkpoint.Meta
	manifests := 0
	net.before = func(name string) {
		if name == callManifest && manifests < 4 {
			manifests++
			n.grow(40 >> manifests)
			newest = n.checkpoint()
		}
	}
	disk := vfs.NewMem()
	o := optionsOf(net, disk, 1, "a")
	o.another = 5000
	must(t, Fetch(t.Context(), o))
	if !install(t, disk) {
		t.Fatal("not installed")
	}
	must(t, errors.Join(sameAsSource(t, disk, n, newest), verify(t, disk)))
	metas, _, err := checkpoint.List(disk, "/checkpoints")
	if manifests < 3 || len(metas) != 1 {
		t.Errorf("%d manifests, %v, %v", manifests, metas, err)
	}
	for i, name := range net.streams[:len(net.streams)-1] {
		if strings.HasSuffix(name, ".ckpt") {
			t.Errorf("stream %d was of a checkpoint that is not used", i)
		}
	}
}

// A checkpoint from before history was let go of is not handed out once that
// history is gone: its state would need contents that are not there.
func TestCheckpointKnowsWhatIsGone(t *testing.T) {
	n := newNode(t, 13).grow(60)
	old := n.checkpoint()
	n.retain(3)
	net := newNet()
	src := n.source()
	full := errors.New("no room")
	src.Snapshot = func() error { return full }
	Serve(net.at("a"), src)
	disk := vfs.NewMem()
	err := fetch(t, net, disk, old.Index, "a")
	if e, ok := errors.AsType[*peer.Error](err); !ok || e.Code != codeNone {
		t.Fatal(err)
	}
	n.serve(net, "a")
	must(t, fetch(t, net, disk, old.Index, "a"))
	if !install(t, disk) {
		t.Fatal("not installed")
	}
	must(t, verify(t, disk))
}

// A node that caught up by itself while a READY lay there keeps what it has.
func TestReadyThatIsTooLate(t *testing.T) {
	for name, late := range map[string]func(n *node, disk *vfs.Mem) *vfs.Mem{
		"the log went on": func(n *node, disk *vfs.Mem) *vfs.Mem { return n.grow(30).copy() },
		"a newer checkpoint": func(n *node, disk *vfs.Mem) *vfs.Mem {
			n.grow(1).checkpoint()
			return n.copy()
		},
		"the log is gone": func(n *node, disk *vfs.Mem) *vfs.Mem {
			for name := range files(n.t, disk, "/log", "") {
				must(n.t, disk.Remove("/log/"+name))
			}
			return disk.Clone()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 14).grow(40)
			disk := n.copy()
			meta := n.grow(30).checkpoint()
			net := newNet()
			n.serve(net, "a")
			must(t, fetch(t, net, disk, meta.Index, "a"))
			now := late(n, disk.Clone())
			for name, b := range files(t, disk, "/incoming", "") {
				now.Put("/incoming/"+name, []byte(b))
			}
			must(t, now.MkdirAll("/incoming"))
			before := files(t, now, "/log", "")
			if install(t, now) {
				t.Error("installed")
			}
			if after := files(t, now, "/log", ""); len(after) != len(before) {
				t.Errorf("the log has changed: %d files, %d before", len(after), len(before))
			}
			if now.Get("/incoming/READY") != nil {
				t.Error("READY stays")
			}
		})
	}
}

// One that sends what is wrong is not asked again; one that is not there is.
func TestSources(t *testing.T) {
	n := newNode(t, 15).grow(40)
	meta := n.checkpoint()
	net := newNet()
	n.serve(net, "liar")
	n.stop = nil
	n.serve(net, "good")
	asked := map[string]int{}
	net.bend = func(s stream) stream {
		asked[s.addr]++
		if s.addr == "liar" && s.name == streamSegment {
			s.b = bytes.Repeat([]byte{7}, len(s.b))
		}
		return s
	}
	o := optionsOf(net, vfs.NewMem(), meta.Index, "nobody", "liar", "liar", "good")
	must(t, Fetch(t.Context(), o))
	if asked["liar"] != 2 {
		t.Errorf("the liar was asked %d times", asked["liar"])
	}
	rounds := 0
	o = optionsOf(net, vfs.NewMem(), meta.Index, "nobody", "liar")
	o.Wait = func(context.Context, int) error { rounds++; return nil }
	if err := Fetch(t.Context(), o); !errors.Is(err, errNobody) || rounds != o.Rounds-1 {
		t.Errorf("%v after %d rounds", err, rounds)
	}
	o.From, rounds = o.From[1:], 0
	if err := Fetch(t.Context(), o); !errors.Is(err, ErrWrong) || rounds != 0 {
		t.Errorf("%v after %d rounds", err, rounds)
	}
}

func TestNoRoom(t *testing.T) {
	n := newNode(t, 16).grow(40)
	meta := n.checkpoint()
	net := newNet()
	n.serve(net, "a")
	disk := vfs.NewMem()
	o := optionsOf(net, disk, meta.Index, "a")
	o.ReserveBytes, o.FreeBytes = 1000, func() (uint64, error) { return 5000, nil }
	if err := Fetch(t.Context(), o); !errors.Is(err, ErrNoSpace) || net.sent > 0 {
		t.Errorf("%v, %d bytes came", err, net.sent)
	}
	o.FreeBytes = func() (uint64, error) { return 1 << 30, nil }
	must(t, Fetch(t.Context(), o))
	if !install(t, disk) {
		t.Error("not installed")
	}
}

func TestServeRefuses(t *testing.T) {
	n := newNode(t, 17).grow(30)
	meta := n.checkpoint()
	mem := newNet()
	n.serve(mem, "a")
	name := n.log.Segments()[0].Name
	size := n.log.Segments()[0].Size
	ask := func(what string, q fileRequest) string {
		_, err := mem.Stream(t.Context(), peer.Target{Addr: "a"}, what, encode(q))
		e, _ := errors.AsType[*peer.Error](err)
		if e == nil {
			t.Fatalf("%s %+v: %v", what, q, err)
		}
		return e.Code
	}
	for _, q := range []fileRequest{
		{Name: ""}, {Name: "../node.json", To: 10}, {Name: "../log/" + name, To: 10}, {Name: strings.TrimSuffix(name, ".seg") + ".idx", To: 10},
		{Name: "/" + name, To: 10}, {Name: name, To: 0}, {Name: name, To: size + 1}, {Name: name, From: -1, To: 10},
		{Name: name, From: 11, To: 10}, {Name: name, To: -1}, {Name: strings.Repeat("9", 20) + ".seg", To: 10},
	} {
		if got := ask(streamSegment, q); got != codeInvalid {
			t.Errorf("segment %+v: %s", q, got)
		}
	}
	if got := ask(streamSegment, fileRequest{Name: log.SegmentName(1 << 40), To: 100}); got != codeGone {
		t.Errorf("a segment that is not there: %s", got)
	}
	c := meta.Name()
	for _, q := range []fileRequest{{}, {Name: "../" + c}, {Name: c + ".tmp"}, {Name: c, From: -1}, {Name: c, From: 1 << 40}, {Name: "+" + c[1:]}, {Name: "../lock"}} {
		if got := ask(streamCheckpoint, q); got != codeInvalid {
			t.Errorf("checkpoint %+v: %s", q, got)
		}
	}
	other := checkpoint.Meta{Index: 1, Term: 1}
	if got := ask(streamCheckpoint, fileRequest{Name: other.Name()}); got != codeGone {
		t.Errorf("a checkpoint that is not there: %s", got)
	}
	call := func(body string) string {
		_, _, err := mem.Call(t.Context(), peer.Target{Addr: "a"}, callManifest, []byte(body))
		e, _ := errors.AsType[*peer.Error](err)
		if e == nil {
			t.Fatalf("%s: %v", body, err)
		}
		return e.Code
	}
	for _, body := range []string{"", "{}", "[]", `{"cluster":"another","min_index":1}`, `{} {}`} {
		if got := call(body); got != codeInvalid {
			t.Errorf("manifest %s: %s", body, got)
		}
	}
	// Above what a new checkpoint could be of.
	if got := call(`{"cluster":"` + cluster + `","min_index":1000000}`); got != codeNone {
		t.Errorf("manifest beyond the end: %s", got)
	}
}

// A checkpoint that is damaged, without a term or without members is none for
// Raft; an older one serves.
func TestOnlyUsableCheckpointsAreOffered(t *testing.T) {
	n := newNode(t, 18).grow(30)
	good := n.checkpoint()
	n.grow(3)
	bad := n.checkpoint()
	b := n.disk.Get("/checkpoints/" + bad.Name())
	b[len(b)-30] ^= 1
	n.disk.Put("/checkpoints/"+bad.Name(), b)
	n.grow(3)
	f := n.m.Freeze()
	defer f.Release()
	must(t, n.log.Sync())
	index, chain := n.log.Tip()
	seed := checkpoint.Meta{Index: index, Term: 1, HeadIndex: index, Chain: chain, Clock: f.Clock(), Digest: f.Digest(), ClusterID: cluster}
	must(t, checkpoint.Write(n.disk, "/checkpoints", seed, f))
	net := newNet()
	n.serve(net, "a")
	disk := vfs.NewMem()
	must(t, fetch(t, net, disk, good.Index, "a"))
	if !install(t, disk) {
		t.Fatal("not installed")
	}
	must(t, errors.Join(sameAsSource(t, disk, n, good), verify(t, disk)))
}

// Over the real network: streams are bounded, and stop breaks them off.
func TestOverTheNetwork(t *testing.T) {
	start := func(name string) *peer.Net {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		p, err := peer.New(peer.Options{Listener: l, Self: peer.Identity{Cluster: cluster, Node: name, Incarnation: name, Raft: l.Addr().String()},
			Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		t.Cleanup(func() { p.Close() })
		return p
	}
	a, b := start("a"), start("b")
	n := newNode(t, 19).grow(200)
	meta := n.checkpoint()
	src := n.source()
	src.Streams, src.BytesPerSecond = 1, 1
	stop := Serve(a, src)
	to := peer.Target{Addr: a.Addr(), Node: "a"}
	// Larger than what is buffered on the way; whether it is a good one is not
	// the sender's to say.
	big := checkpoint.Meta{Index: 1, Term: 1}
	n.disk.Put("/checkpoints/"+big.Name(), make([]byte, 1<<20))
	q := encode(fileRequest{Name: big.Name()})
	in, err := b.Stream(t.Context(), to, streamCheckpoint, q)
	must(t, err)
	if _, err := io.ReadFull(in, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_, err = b.Stream(t.Context(), to, streamCheckpoint, q)
	if e, ok := errors.AsType[*peer.Error](err); !ok || e.Code != codeBusy {
		t.Errorf("a second stream: %v", err)
	}
	stop()
	if _, err := io.Copy(io.Discard, in); err == nil {
		t.Error("the stream came to its end")
	}
	in.Close()
	defer Serve(a, n.source())()
	disk := vfs.NewMem()
	o := optionsOf(b, disk, meta.Index)
	o.From = []peer.Target{{Addr: "127.0.0.1:1", Node: "nobody"}, to}
	must(t, Fetch(t.Context(), o))
	if !install(t, disk) {
		t.Fatal("not installed")
	}
	must(t, errors.Join(sameAsSource(t, disk, n, meta), verify(t, disk)))
}

// stuck is a stream that brings nothing until it is given up.
type stuck struct{ Caller }

func (s *stuck) Stream(ctx context.Context, _ peer.Target, _ string, _ []byte) (io.ReadCloser, error) {
	return io.NopCloser(readerFunc(func([]byte) (int, error) { <-ctx.Done(); return 0, ctx.Err() })), nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestIdleStreamIsGivenUp(t *testing.T) {
	n := newNode(t, 20).grow(10)
	meta := n.checkpoint()
	mem := newNet()
	n.serve(mem, "a")
	synctest.Test(t, func(t *testing.T) {
		o := optionsOf(&stuck{mem}, vfs.NewMem(), meta.Index, "a")
		o.Rounds, o.Wait = 2, nil
		began := time.Now()
		if err := Fetch(t.Context(), o); err == nil || !strings.Contains(err.Error(), "nothing has come for 30s") {
			t.Error(err)
		}
		if took := time.Since(began); took != 61*time.Second {
			t.Errorf("it took %v", took) // two streams, and a pause between them
		}
	})
}

// The names are those of the packages that own them.
func TestNames(t *testing.T) {
	m := checkpoint.Meta{Index: 12, Term: 3}
	if i, term, ok := checkpoint.ParseName(m.Name()); !ok || i != 12 || term != 3 {
		t.Error(m.Name())
	}
	for _, bad := range []string{"", ".ckpt", m.Name() + "x", "x" + m.Name(), strings.Replace(m.Name(), "0", "+", 1), strings.Replace(m.Name(), "-", "_", 1)} {
		if _, _, ok := checkpoint.ParseName(bad); ok {
			t.Errorf("%q is taken for a checkpoint", bad)
		}
	}
}

func FuzzManifest(f *testing.F) {
	n := newNode(f, 21).grow(20)
	n.checkpoint()
	n.stop = nil
	s := &server{Source: n.source(), verified: map[string]int64{}}
	m, err := s.find(context.Background(), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encode(m))
	r := &ready{Manifest: *m, Replace: true}
	b, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{}`))
	f.Add([]byte(readyMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeManifest(b); err == nil {
			// What passes is in order, and comes back as it was.
			last := m.PrevIndex
			for _, s := range m.Segments {
				if s.First <= last || s.Last < s.First || s.Size <= 0 || s.Name != log.SegmentName(s.First) {
					t.Fatalf("%+v", m)
				}
				last = s.Last
			}
			again, err := decodeManifest(encode(m))
			if err != nil || !bytes.Equal(encode(again), encode(m)) {
				t.Fatalf("%v: %+v", err, again)
			}
		}
		if r, err := decodeReady(b); err == nil {
			again, err := r.encode()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeReady(again); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// READY's bytes are frozen: a later program must finish what this one began.
func TestReadyBytes(t *testing.T) {
	r := &ready{Replace: true, Manifest: Manifest{
		Cluster: cluster, PrevIndex: 4, PrevChain: checkpoint.Chain{1},
		Checkpoint: Checkpoint{Name: "00000000000000000009-00000000000000000002.ckpt", Size: 5, Index: 9, Term: 2, HeadIndex: 8, Chain: checkpoint.Chain{2}},
		Segments:   []Segment{{Name: "00000000000000000005.seg", First: 5, Last: 8, Size: 200, Chain: checkpoint.Chain{2}}},
	}}
	b, err := r.encode()
	must(t, err)
	const chains = "0000000000000000000000000000000000000000000000000000000000000"
	want := "qlogdinc\x01\x00\x00\x00\xed\x01\x00\x00" +
		`{"cluster":"01HGW2N7Q0000000000000000A","checkpoint":{"name":"00000000000000000009-00000000000000000002.ckpt","size":5,"index":9,"term":2,"head_index":8,"chain":"02` + chains + `0"},` +
		`"prev_index":4,"prev_chain":"01` + chains + `0","segments":[{"name":"00000000000000000005.seg","first":5,"last":8,"size":200,"chain":"02` + chains + `0"}],"replace":true}`
	if !slices.Equal(b[:len(b)-4], []byte(want)) {
		t.Errorf("%q, want\n%q", b, want)
	}
	if _, err := decodeReady(b); err != nil {
		t.Error(err)
	}
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 0x10
		if _, err := decodeReady(c); !errors.Is(err, errNotReady) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	for n := range b {
		if _, err := decodeReady(b[:n]); !errors.Is(err, errNotReady) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}
