// Package fetch transfers to a node the part of the event log that it lacks: to one that was away
// for so long that the leader's Raft log begins after its own end, or whose directory is new. Bulk
// never goes through hashicorp/raft, whose main loop would block for as long as it takes (I17).
//
// Serve answers other nodes from the running node's files. Fetch transfers a checkpoint that the
// leader offered, and the segments of the event log up to it, into <data>/incoming. It verifies
// that their chain of hashes continues the local log's and ends in the checkpoint's. Install moves
// them in place while the engine is closed: as if the node had written the checkpoint itself.
// Segment transfers one segment again that is damaged here.
package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// Options say what to fetch, and from where.
type Options struct {
	Net peer.Caller
	// From are the nodes to ask for segments, in this order. The last one is the leader,
	// which keeps the checkpoint and the Raft log after it.
	From       []peer.Target
	Checkpoint checkpoint.Meta // as the leader offered it
	FS         vfs.FS
	DataDir    string
	Logger     *slog.Logger
	// FreeBytes, if set, is asked before anything is transferred: 256 MiB must stay free.
	FreeBytes func() (uint64, error)
}

const (
	reserveBytes = 256 << 20
	chunkBytes   = 1 << 20          // of one call
	idleTime     = 30 * time.Second // of one call
	logEvery     = 10 * time.Second
)

// ErrDiffers is returned by Fetch if the local event log has another history than that of all
// nodes asked. One of them is wrong, so nothing is overwritten.
var ErrDiffers = errors.New("the event log has another history")

type fetcher struct {
	Options
	dir    string
	after  *log.SegmentInfo // what the next segment continues; nil: nothing in the local log
	logged time.Time
}

// Fetch transfers what is missing into <data>/incoming, asking each node once, and returns
// what Install is to move in place. After an error the files that have arrived whole stay, and
// the next Fetch continues after them. Only one may run for a directory, whose engine may be open.
func Fetch(ctx context.Context, o Options) (p *Plan, err error) {
	f := &fetcher{Options: o, dir: path.Join(o.DataDir, datadir.IncomingDir)}
	err = f.any(ctx, func(to peer.Target) error {
		p, err = f.from(ctx, to)
		return err
	})
	return p, err
}

// Segment transfers a sealed segment, whose file here is damaged, into <data>/incoming, from the
// first node that has the same one: with the same chain, though other contents may be erased in it.
// Of the options Checkpoint is not used. Fetch must not run meanwhile.
func Segment(ctx context.Context, o Options, sealed log.SegmentInfo) error {
	f := &fetcher{Options: o, dir: path.Join(o.DataDir, datadir.IncomingDir)}
	verify := func() error {
		found, err := log.ScanSegment(ctx, f.FS, f.dir, sealed.Name, sealed.Size, nil)
		if found.Sealed = true; err == nil && found.SegmentInfo != sealed {
			err = fmt.Errorf("%w: segment %s ends at index %d with chain %s, here with %s",
				ErrDiffers, sealed.Name, found.Last, found.Chain, sealed.Chain)
		}
		return err
	}
	return f.any(ctx, func(to peer.Target) error {
		err := f.prepare(map[string]int64{sealed.Name: sealed.Size})
		if err == nil {
			err = f.file(ctx, to, datadir.LogDir, sealed.Name, sealed.Size, verify)
		}
		return err
	})
}

// any calls from with one node after the other until it succeeds with one.
func (f *fetcher) any(ctx context.Context, from func(peer.Target) error) error {
	if err := f.FS.MkdirAll(f.dir); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	var differs, failed error
	for _, to := range f.From {
		err := from(to)
		if err == nil || ctx.Err() != nil {
			return err
		}
		f.Logger.Warn("fetch failed", "from", to.Node, "addr", to.Addr, "error", err)
		err = fmt.Errorf("from %s at %s: %w", to.Node, to.Addr, err)
		if errors.Is(err, ErrDiffers) {
			differs = errors.Join(differs, err)
		} else {
			failed = errors.Join(failed, err)
		}
	}
	return fmt.Errorf("fetch: %w", cmp.Or(failed, differs, errNoSource))
}

var errNoSource = errors.New("no other node that has it is within reach")

// from transfers the missing segments from one node, and the checkpoint from the leader.
func (f *fetcher) from(ctx context.Context, to peer.Target) (*Plan, error) {
	p, err := f.plan(ctx, to)
	if err != nil {
		return nil, err
	}
	want := p.files()
	for _, s := range p.Segments[:max(len(p.Segments)-1, 0)] { // the newest is not sealed
		want[log.SideFileName(s.First)] = 0
	}
	if err := f.prepare(want); err != nil {
		return nil, err
	}
	logger := f.Logger.With("checkpoint", p.Checkpoint.Name, "segments", len(p.Segments),
		"replace", p.Replace)
	logger.Info("fetching", "from", to.Node, "addr", to.Addr)
	// The oldest first: each is verified from the end of the one before.
	for i, s := range p.Segments {
		verify := func() error { return f.verifySegment(ctx, p, i) }
		if err := f.file(ctx, to, datadir.LogDir, s.Name, s.Size, verify); err != nil {
			return nil, err
		}
	}
	c, leader := &p.Checkpoint, f.From[len(f.From)-1]
	err = f.file(ctx, leader, datadir.CheckpointDir, c.Name, c.Size, f.verifyCheckpoint)
	if err != nil {
		return nil, err
	}
	logger.Info("fetched")
	return p, f.FS.SyncDir(f.dir)
}

// plan asks a node for its segments and compares them with the local log. It returns what is to be
// fetched.
func (f *fetcher) plan(ctx context.Context, to peer.Target) (*Plan, error) {
	c := &f.Checkpoint
	p := &Plan{Cluster: c.ClusterID, Checkpoint: Checkpoint{Name: c.Name(), Size: c.Size,
		Index: c.Index, Term: c.Term, HeadIndex: c.HeadIndex, Chain: c.Chain}}
	sealed, head, here, err := local(f.FS, f.DataDir, c.HeadIndex)
	if err != nil {
		return nil, err
	}
	p.head = head.Last
	// Also if only the checkpoint is missing: one node's word does not make this log a wrong one.
	q := listRequest{HeadIndex: c.HeadIndex, Chain: c.Chain, Asked: min(head.Last, c.HeadIndex)}
	var l list
	if _, err := peer.Ask(ctx, f.Net, to, callList, q, &l); err != nil {
		return nil, err
	}
	p.extent = l.extent
	if err := p.check(); err != nil || len(p.Segments) == 0 {
		return nil, fmt.Errorf("list of %d segments: %v", len(p.Segments), err)
	}
	if q.Asked > 0 && q.Asked >= l.PrevIndex { // else the other has deleted what is here
		switch l.Asked {
		case here:
		case event.Chain{}:
			return nil, fmt.Errorf("the other node has no chain at index %d any more", q.Asked)
		default:
			return nil, fmt.Errorf("%w: at index %d its chain is %s, the other node's %s",
				ErrDiffers, q.Asked, here, l.Asked)
		}
	}
	if q.Asked == c.HeadIndex {
		p.extent = extent{PrevIndex: c.HeadIndex, PrevChain: c.Chain}
		return p, nil
	}
	// Sealed segments that are the same stay: a chain covers all that came before it. The
	// newest is fetched whole, because its end may not be on disk here.
	f.after = nil
	for _, s := range sealed {
		if next := p.Segments[0]; same(s, next) {
			p.PrevIndex, p.PrevChain, p.Segments = next.Last, next.Chain, p.Segments[1:]
		}
		if s.Last == p.PrevIndex && s.Chain == p.PrevChain {
			f.after = &s
		}
	}
	p.Replace = p.PrevIndex > 0 && f.after == nil
	return p, nil
}

// local returns what the local log, to which the engine may write, consists of: its sealed
// segments, the newest one, and its chain at an index, or where it ends before that.
func local(fsys vfs.FS, dataDir string, index uint64) (
	sealed []log.SegmentInfo, newest log.SegmentInfo, chain event.Chain, err error) {
	l, err := log.OpenReadOnly(log.Options{FS: fsys, Dir: path.Join(dataDir, datadir.LogDir)})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, newest, chain, nil
	} else if err != nil {
		return nil, newest, chain, err
	}
	defer l.Close()
	if all := l.Segments(); len(all) > 0 {
		sealed, newest = all[:len(all)-1], all[len(all)-1]
		chain, err = l.ChainAt(min(index, newest.Last))
	}
	return sealed, newest, chain, err
}

// prepare removes files that are not wanted, and checks that the rest, of these sizes, has room.
func (f *fetcher) prepare(want map[string]int64) error {
	names, err := f.FS.List(f.dir)
	if err != nil {
		return err
	}
	need := int64(reserveBytes)
	for name, size := range want {
		if !slices.Contains(names, name) {
			need += size
		}
	}
	useless := slices.DeleteFunc(names, func(name string) bool { _, ok := want[name]; return ok })
	if err := vfs.Remove(f.FS, f.dir, useless...); err != nil || f.FreeBytes == nil {
		return err
	}
	free, err := f.FreeBytes()
	if err == nil && uint64(need) > free {
		err = fmt.Errorf("%w: %d bytes are needed (%d of them stay free), %d are free",
			syscall.ENOSPC, need, reserveBytes, free)
	}
	return err
}

// file fetches one file and verifies it, unless it is there from an earlier attempt.
func (f *fetcher) file(ctx context.Context, from peer.Target, dir, name string, size int64,
	verify func() error) error {
	local := path.Join(f.dir, name)
	if have, err := f.FS.Stat(local); err == nil && have == size && verify() == nil {
		return nil
	}
	err := vfs.Write(f.FS, local, func(w io.Writer) error {
		for off := int64(0); off < size; {
			b, err := f.read(ctx, from, readRequest{dir + "/" + name, off, size - off})
			if err == nil {
				_, err = w.Write(b)
			}
			if err != nil {
				return fmt.Errorf("at %d of %d bytes: %w", off, size, err)
			}
			off += int64(len(b))
			if time.Since(f.logged) >= logEvery {
				f.logged = time.Now()
				f.Logger.Info("fetching", "file", name, "bytes", off, "of", size)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return verify()
}

// read asks for bytes of a file, and returns the first of them.
func (f *fetcher) read(ctx context.Context, from peer.Target, q readRequest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, idleTime)
	defer cancel()
	body, _ := json.Marshal(q) // a name and numbers: it never fails
	b, _, err := f.Net.Call(ctx, from, callRead, body)
	if err == nil && (len(b) == 0 || int64(len(b)) > q.Size) {
		err = fmt.Errorf("%d bytes of %d were sent", len(b), q.Size)
	}
	return b, err
}

// verifySegment verifies a segment, and writes the side file of one that will be sealed, so
// that opening the log need not compute it.
func (f *fetcher) verifySegment(ctx context.Context, p *Plan, i int) error {
	s := p.Segments[i]
	found, err := log.ScanSegment(ctx, f.FS, f.dir, s.Name, s.Size, f.after)
	if err == nil && (!same(found.SegmentInfo, s) || f.after == nil &&
		(found.PrevIndex != p.PrevIndex || found.PrevChain != p.PrevChain)) {
		err = fmt.Errorf("segment %s is not as listed: "+
			"it continues index %d, and has %d bytes up to index %d, chain %s",
			s.Name, found.PrevIndex, found.Size, found.Last, found.Chain)
	}
	if err == nil && i < len(p.Segments)-1 {
		err = vfs.WriteFile(f.FS, path.Join(f.dir, log.SideFileName(s.First)), found.Side)
	}
	if err == nil {
		f.after = &found.SegmentInfo
	}
	return err
}

func (f *fetcher) verifyCheckpoint() error {
	want := &f.Checkpoint
	meta, err := checkpoint.Verify(f.FS, f.dir, want.Name())
	if err == nil && (meta.ClusterID != want.ClusterID || meta.HeadIndex != want.HeadIndex ||
		meta.Chain != want.Chain) {
		err = fmt.Errorf("checkpoint %s is not as offered: it is of cluster %q, index %d, chain %x",
			want.Name(), meta.ClusterID, meta.HeadIndex, meta.Chain)
	}
	return err
}
