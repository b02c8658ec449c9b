// Package fetch brings to a node what it lacks: one that was away for so long
// that the leader's Raft log begins behind its own end, or one that was wiped.
//
// It has three parts:
//
//	Serve    answers what others ask for, from the running node's files
//	Fetch    brings a checkpoint and the event log up to exactly that checkpoint
//	         into <data>/incoming, beside the running node; it verifies every
//	         byte, and can be broken off anywhere and begun again
//	Install  puts what is whole in place, before anything is opened
//
// So the bulk never goes through hashicorp/raft, whose main loop would stand
// still, under a deadline, for as long as it takes (design.md section 5). In the
// end the directory is as if the node had written the checkpoint itself: its
// event log ends at the checkpoint's head, and Raft goes on behind it.
//
// What is trusted: that the chain of hashes in the fetched segments, which goes
// on from the local log's, ends in the checkpoint's chain. What does not is
// fetched anew, from another node.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// Caller is the part of *peer.Net that Fetch needs.
type Caller interface {
	Call(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, peer.Identity, error)
	Stream(ctx context.Context, to peer.Target, name string, body []byte) (io.ReadCloser, error)
}

// Options say what to bring, from where.
type Options struct {
	Net Caller
	// From are the nodes to ask, in this order.
	From      []peer.Target
	ClusterID string
	// MinIndex is the lowest index of a checkpoint that is of use: the leader's
	// Raft log must reach back to behind it.
	MinIndex uint64
	FS       vfs.FS
	DataDir  string
	Logger   *slog.Logger // nil = silent
	// Progress, if set, is told the bytes that are there and all that are needed.
	// Both may grow when a newer checkpoint is found.
	Progress func(done, total int64)
	// FreeBytes, if set, is asked before anything is transferred: ReserveBytes
	// (default 256 MiB) must be left in the end.
	FreeBytes    func() (uint64, error)
	ReserveBytes uint64
	// Rounds is how often all nodes are asked in vain, one after the other, before
	// Fetch gives up; default 6. A round that brought something does not count.
	// What was brought stays for the next Fetch.
	Rounds int
	// Wait is what passes between two rounds, by default 1 s to 30 s.
	Wait func(ctx context.Context, round int) error
	// Idle is how long a stream may bring nothing; default 30 s.
	Idle time.Duration

	// How much is written at once, how much between two fsyncs, and how much is
	// worth another manifest: tests want many.
	chunk, syncEvery, another int64
}

// Errors of Fetch. Others are of the network, the disk, or of a source.
var (
	// ErrNothingLacking: the local event log reaches the checkpoint's head
	// already. Raft's own stream can bring the checkpoint.
	ErrNothingLacking = errors.New("nothing is lacking: the event log reaches the checkpoint")
	// ErrDiffers: the local event log is of another history than that of all
	// nodes asked. One of them is wrong, so nothing is overwritten.
	ErrDiffers = errors.New("the event log is of another history")
	// ErrNoSpace: the disk is too full for what is lacking.
	ErrNoSpace = errors.New("the disk is too full")
	// ErrWrong: a node has sent what does not verify. It is not asked again by
	// this Fetch.
	ErrWrong = errors.New("what was sent is wrong")
	// ErrInstall: what was brought before is half in place; Install comes first.
	ErrInstall = errors.New("an installation is under way")
)

// Fetch brings what is lacking into <data>/incoming. When it returns nil a READY
// is there, and Install will put it in place. Whatever else it returns, what has
// come so far stays and is gone on from by the next Fetch. There must be one at
// a time for a directory, of which the engine may be open.
func Fetch(ctx context.Context, o Options) error {
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	if o.ReserveBytes == 0 {
		o.ReserveBytes = 256 << 20
	}
	if o.Rounds == 0 {
		o.Rounds = 6
	}
	if o.Wait == nil {
		o.Wait = backoff
	}
	if o.Idle == 0 {
		o.Idle = 30 * time.Second
	}
	if o.chunk == 0 {
		o.chunk = chunk
	}
	if o.syncEvery == 0 {
		// What one fsync has to write holds up the node's own.
		o.syncEvery = 16 << 20
	}
	if o.another == 0 {
		// What comes in meanwhile is worth asking again: the checkpoint is then
		// newer, and the leader's Raft log need not reach back so far.
		o.another = 64 << 20
	}
	f := &fetcher{Options: o, dir: path.Join(o.DataDir, datadir.IncomingDir), dropped: map[peer.Target]error{}, whole: map[string]verified{}}
	if err := f.run(ctx); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}

func backoff(ctx context.Context, round int) error {
	t := time.NewTimer(min(time.Second<<min(round, 5), 30*time.Second))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type fetcher struct {
	Options
	dir     string
	dropped map[peer.Target]error // who sent what is wrong, or is of another history
	brought int64                 // bytes that came over the network
	done    int64                 // bytes of the plan that are there
	total   int64
	tenths  int64 // of them, as was last told
	// whole are the segments that this Fetch has verified: for a newer manifest
	// they need not be read again.
	whole map[string]verified
}

// verified is a segment's file that is right up to its end.
type verified struct {
	log.SegmentInfo
	end  log.End
	side bool // its side file is there too
}

func (f *fetcher) run(ctx context.Context) error {
	if is, err := f.isReady(); is || err != nil {
		return err
	}
	f.From = distinct(f.From)
	if len(f.From) == 0 {
		return errors.New("there is nobody to ask")
	}
	for round := 0; ; round++ {
		before := f.brought
		var errs []error
		noRoom := false
		for _, to := range f.From {
			if f.dropped[to] != nil {
				continue
			}
			err := f.from(ctx, to)
			if err == nil || ctx.Err() != nil || errors.Is(err, ErrNothingLacking) || errors.Is(err, ErrInstall) {
				return err
			}
			f.Logger.Warn("fetching what this node lacks was broken off", "from", to.Node, "addr", to.Addr, "error", err)
			errs = append(errs, fmt.Errorf("from %s at %s: %w", to.Node, to.Addr, err))
			if errors.Is(err, ErrWrong) || errors.Is(err, ErrDiffers) {
				f.dropped[to] = errs[len(errs)-1]
			}
			if noRoom = full(err); noRoom {
				break // from whomever it comes
			}
		}
		if len(f.dropped) == len(f.From) {
			errs = errs[:0]
			for _, to := range f.From {
				errs = append(errs, f.dropped[to])
			}
			return errors.Join(errs...)
		}
		if f.brought > before && !noRoom {
			round = 0
		}
		if round+1 >= f.Rounds {
			return errors.Join(errs...)
		}
		if err := f.Wait(ctx, round); err != nil {
			return err
		}
	}
}

// distinct leaves out who is named again.
func distinct(all []peer.Target) (out []peer.Target) {
	for _, t := range all {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// full tells of a disk without room.
func full(err error) bool {
	return errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isReady tells whether there is a READY that still serves. One that does not is
// removed: what it lists serves the next one.
func (f *fetcher) isReady() (bool, error) {
	if _, err := f.FS.Stat(path.Join(f.dir, installFile)); err == nil {
		return false, ErrInstall
	}
	r, err := readReady(f.FS, f.dir, readyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && r.Cluster == f.ClusterID && r.Checkpoint.Index >= f.MinIndex {
		if ok, err := r.there(f.FS, f.dir); ok || err != nil {
			return ok, err
		}
	}
	if err != nil && !errors.Is(err, errNotReady) {
		return false, err
	}
	// Before anything else changes here, durably: READY vouches for all files.
	return false, f.remove(readyFile)
}

func (f *fetcher) remove(names ...string) error {
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		if err := f.FS.Remove(path.Join(f.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return f.FS.SyncDir(f.dir)
}

// maxManifests is how often a node is asked for a newer manifest, when it has let
// go of what the old one lists, or when bringing it took long.
const maxManifests = 8

// from brings everything from one node.
func (f *fetcher) from(ctx context.Context, to peer.Target) error {
	var had string
	for range maxManifests {
		before := f.brought
		p, err := f.plan(ctx, to)
		if err != nil {
			return err
		}
		gone := func(err error) bool {
			e, ok := errors.AsType[*peer.Error](err)
			return ok && (e.Code == codeGone || e.Code == codeInvalid)
		}
		if err := f.segments(ctx, to, p); gone(err) {
			continue
		} else if err != nil {
			return err
		}
		if name := p.Checkpoint.Name; name != had && f.brought-before >= f.another {
			had = name
			continue
		}
		if err := f.checkpoint(ctx, to, p); gone(err) {
			continue
		} else if err != nil {
			return err
		}
		return f.ready(p)
	}
	return errors.New("the node let go of what it listed again and again")
}

// plan is what is to be brought for one manifest.
type plan struct {
	ready
	after *log.End        //  what the first segment continues; nil: nothing that is here
	begun log.SegmentInfo // what the local log has of the first segment; or zero
}

// plan asks for a manifest and compares it with what is here.
func (f *fetcher) plan(ctx context.Context, to peer.Target) (*plan, error) {
	local, segmentSize, err := f.localLog()
	if err != nil {
		return nil, err
	}
	var head log.SegmentInfo
	if n := len(local); n > 0 {
		head = local[n-1]
	}
	m, err := f.manifest(ctx, to, head.Last)
	if err != nil {
		return nil, err
	}
	p := &plan{ready: ready{Manifest: *m}}
	p.Asked = nil
	differs := func(index uint64, here, there [32]byte) error {
		return fmt.Errorf("%w: at index %d its chain is %x, the other node's %x", ErrDiffers, index, here, there)
	}
	switch {
	case head.Last >= m.Checkpoint.HeadIndex:
		return nil, f.reaches(m)
	case m.PrevIndex > head.Last:
		p.Replace = true
	case head.Last == 0:
	case m.PrevIndex == head.Last && m.PrevChain != checkpoint.Chain(head.Chain):
		return nil, differs(head.Last, head.Chain, m.PrevChain)
	case m.PrevIndex < head.Last && m.Asked == nil:
		return nil, fmt.Errorf("the other node does not tell its chain at index %d", head.Last)
	case m.PrevIndex < head.Last && *m.Asked != checkpoint.Chain(head.Chain):
		return nil, differs(head.Last, head.Chain, *m.Asked)
	}
	if !p.Replace {
		// What is here stays, as far as it is whole: a chain stands for all that
		// came before it.
		for len(p.Segments) > 0 && p.Segments[0].Last <= head.Last {
			p.PrevIndex, p.PrevChain = p.Segments[0].Last, p.Segments[0].Chain
			p.Segments = p.Segments[1:]
		}
		for _, s := range local {
			switch {
			case s.First == p.Segments[0].First:
				if s.PrevIndex != p.PrevIndex || checkpoint.Chain(s.PrevChain) != p.PrevChain {
					return nil, differs(s.PrevIndex, s.PrevChain, p.PrevChain)
				}
				p.begun = s
			case s.Last == p.PrevIndex:
				p.after = &log.End{Index: s.Last, Chain: s.Chain, Clock: s.Clock, SegmentSize: segmentSize}
			}
		}
		if p.begun.Name == "" && p.after == nil && head.Last > 0 {
			return nil, fmt.Errorf("%w: the other node's segment %s begins inside of one", ErrDiffers, p.Segments[0].Name)
		}
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := f.prepare(p); err != nil {
		return nil, err
	}
	f.Logger.Info("fetching what this node lacks", "from", to.Node, "addr", to.Addr, "checkpoint", p.Checkpoint.Name,
		"segments", len(p.Segments), "replace", p.Replace, "bytes", f.total, "there", f.done)
	return p, nil
}

// localLog looks at the local log, which may be open.
func (f *fetcher) localLog() ([]log.SegmentInfo, int64, error) {
	return localLog(f.FS, f.DataDir)
}

func localLog(fsys vfs.FS, dataDir string) ([]log.SegmentInfo, int64, error) {
	l, err := log.OpenReadOnly(log.Options{FS: fsys, Dir: path.Join(dataDir, datadir.LogDir)})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	defer l.Close()
	return l.Segments(), l.SegmentSize(), nil
}

// reaches says what to make of a manifest that the local log reaches, or goes
// beyond.
func (f *fetcher) reaches(m *Manifest) error {
	l, err := log.OpenReadOnly(log.Options{FS: f.FS, Dir: path.Join(f.DataDir, datadir.LogDir)})
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNothingLacking // and neither log has a block
	} else if err != nil {
		return err
	}
	defer l.Close()
	chain, err := l.ChainAt(m.Checkpoint.HeadIndex)
	if err == nil && chain != m.Checkpoint.Chain {
		return fmt.Errorf("%w: at index %d its chain is %x, the other node's %x", ErrDiffers, m.Checkpoint.HeadIndex, chain, m.Checkpoint.Chain)
	}
	return ErrNothingLacking
}

func (f *fetcher) manifest(ctx context.Context, to peer.Target, asked uint64) (*Manifest, error) {
	q := encode(manifestRequest{Cluster: f.ClusterID, MinIndex: f.MinIndex, Asked: asked})
	b, _, err := f.Net.Call(ctx, to, callManifest, q)
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWrong, err)
	}
	switch {
	case m.Cluster != f.ClusterID:
		return nil, fmt.Errorf("%w: a manifest of cluster %q", ErrWrong, m.Cluster)
	case m.Checkpoint.Index < f.MinIndex:
		return nil, fmt.Errorf("%w: a checkpoint of index %d, asked for %d or above", ErrWrong, m.Checkpoint.Index, f.MinIndex)
	}
	return m, nil
}

// prepare removes what the plan has no use for, and looks whether the rest has
// room.
func (f *fetcher) prepare(p *plan) error {
	if err := f.FS.MkdirAll(f.dir); err != nil {
		return err
	}
	names, err := f.FS.List(f.dir)
	if err != nil {
		return err
	}
	want := map[string]int64{p.Checkpoint.Name: p.Checkpoint.Size}
	for i, s := range p.Segments {
		want[s.Name] = s.Size
		if i < len(p.Segments)-1 {
			want[log.SideFileName(s.First)] = 0
		}
	}
	var useless []string
	f.done, f.total = 0, 0
	for _, size := range want {
		f.total += size
	}
	for _, name := range names {
		size, ok := want[name]
		if !ok {
			useless = append(useless, name)
			continue
		}
		info, err := f.FS.Stat(path.Join(f.dir, name))
		if err != nil {
			return err
		}
		f.done += min(size, info.Size)
	}
	if err := f.remove(useless...); err != nil {
		return err
	}
	f.tenths = 0
	f.count(0)
	if f.FreeBytes == nil {
		return nil
	}
	free, err := f.FreeBytes()
	if err != nil {
		return fmt.Errorf("free space: %w", err)
	}
	if need := uint64(f.total-f.done) + f.ReserveBytes; need > free {
		return fmt.Errorf("%w: %d bytes are needed (%d of them to stay free), %d are free", ErrNoSpace, need, f.ReserveBytes, free)
	}
	return nil
}

// ready tells, last of all and durably, that everything is there.
func (f *fetcher) ready(p *plan) error {
	b, err := p.encode()
	if err != nil {
		return err
	}
	// The names that READY vouches for come before its own.
	if err := f.FS.SyncDir(f.dir); err != nil {
		return err
	}
	if err := vfs.WriteFile(f.FS, path.Join(f.dir, readyFile), b); err != nil {
		return err
	}
	f.Logger.Info("what this node lacked is there", "checkpoint", p.Checkpoint.Name, "segments", len(p.Segments), "replace", p.Replace, "bytes", f.total, "transferred", f.brought)
	return nil
}

// checkpoint brings and verifies the checkpoint.
func (f *fetcher) checkpoint(ctx context.Context, to peer.Target, p *plan) error {
	c := &p.Checkpoint
	// Two nodes' checkpoints of one name are not the same bytes, so what was there
	// before may not fit; then it is brought whole.
	for resumed := true; ; resumed = false {
		file, size, err := f.open(c.Name)
		if err != nil {
			return err
		}
		if size > c.Size || !resumed {
			f.count(-min(size, c.Size))
			if size, err = 0, file.Truncate(0); err != nil {
				return errors.Join(err, file.Close())
			}
		}
		had := size > 0
		err = f.stream(ctx, to, streamCheckpoint, fileRequest{Name: c.Name, From: size}, file, size, c.Size)
		if err == nil {
			err = f.sync(file)
		}
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
		meta, err := checkpoint.Verify(f.FS, f.dir, c.Name)
		if err == nil && (meta.ClusterID != f.ClusterID || meta.HeadIndex != c.HeadIndex || meta.Chain != c.Chain) {
			err = fmt.Errorf("%w: checkpoint %s is of cluster %q, index %d, chain %x; the event log of %q, %d, %x", checkpoint.ErrCorrupt,
				c.Name, meta.ClusterID, meta.HeadIndex, meta.Chain, f.ClusterID, c.HeadIndex, c.Chain)
		}
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[*fs.PathError](err); ok {
			return err // this node's disk
		}
		if had {
			continue
		}
		// Or of a version that this program does not know; another node may have
		// one that it does.
		f.count(-c.Size)
		return errors.Join(fmt.Errorf("%w: %w", ErrWrong, err), f.remove(c.Name))
	}
}
