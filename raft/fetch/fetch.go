// Package fetch brings to a node the part of the event log that it lacks: to one
// that was away for so long that the leader's Raft log begins behind its own end,
// or that was wiped. The bulk never goes through hashicorp/raft, whose main loop
// would stand still for as long as it takes.
//
// Serve answers other nodes from the running node's files. Fetch brings a
// checkpoint, and the event log up to exactly that checkpoint, into
// <data>/incoming beside the running node. Install puts them in place before
// anything is opened; then the directory is as if the node had written the
// checkpoint itself, and Raft goes on behind it.
//
// What is trusted: that the chain of hashes in the fetched segments, which goes
// on from the local log's, ends in the checkpoint's chain.
package fetch

import (
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

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// Caller is the part of *peer.Net that Fetch needs.
type Caller interface {
	Call(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, peer.Identity, error)
	Get(ctx context.Context, target peer.Target, path string, from, to int64) (io.ReadCloser, error)
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
	// FreeBytes, if set, is asked before anything is transferred: 256 MiB must be
	// left in the end.
	FreeBytes func() (uint64, error)
}

const (
	reserveBytes = 256 << 20
	chunkBytes   = 256 << 10        // written at once
	syncBytes    = 16 << 20         // between two fsyncs: each holds up the node's own
	idleTime     = 30 * time.Second // without a byte
	logEvery     = 10 * time.Second
)

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
	// ErrWrong: a node has sent what does not verify.
	ErrWrong = errors.New("what was sent is wrong")
	// ErrInstall: what was brought before is half in place; Install comes first.
	ErrInstall = errors.New("an installation is under way")
)

type fetcher struct {
	Options
	dir    string
	logged time.Time
}

// Fetch brings what is lacking into <data>/incoming, asking each node once. When
// it returns nil a READY is there, and Install will put it in place. After an
// error the files that have come stay, and the next Fetch goes on from them.
// There must be one at a time for a directory, of which the engine may be open.
func Fetch(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &fetcher{Options: o, dir: path.Join(o.DataDir, datadir.IncomingDir)}
	if err := f.run(ctx); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}

func (f *fetcher) run(ctx context.Context) error {
	if is, err := f.isReady(); is || err != nil {
		return err
	}
	var differ, others []error
	for _, to := range f.From {
		err := f.from(ctx, to)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrNothingLacking) {
			return err
		}
		f.Logger.Warn("fetching was broken off", "from", to.Node, "addr", to.Addr, "error", err)
		err = fmt.Errorf("from %s at %s: %w", to.Node, to.Addr, err)
		if errors.Is(err, ErrDiffers) {
			differ = append(differ, err)
		} else {
			others = append(others, err)
		}
		if errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			break // wherever it comes from
		}
	}
	switch {
	case len(others) > 0: // not all have said that this log is another
		return errors.Join(others...)
	case len(differ) > 0:
		return errors.Join(differ...)
	}
	return errors.New("there is nobody to ask")
}

// isReady reports whether there is a READY that still serves. One that does not
// is removed: the files that it lists serve the next one.
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
	return false, drop(f.FS, f.dir, readyFile)
}

// from brings everything from one node.
func (f *fetcher) from(ctx context.Context, to peer.Target) error {
	p, err := f.plan(ctx, to)
	if err != nil {
		return err
	}
	// The oldest first: each is verified from the end of the one before.
	for i := range p.Segments {
		s := &p.Segments[i]
		err := f.file(ctx, to, datadir.LogDir, s.Name, s.Size, func() error {
			return f.verifySegment(ctx, p, i)
		})
		if err != nil {
			return err
		}
	}
	c := &p.Checkpoint
	if err := f.file(ctx, to, datadir.CheckpointDir, c.Name, c.Size, func() error { return f.verifyCheckpoint(c) }); err != nil {
		return err
	}
	// Last of all, and durably. The names that READY vouches for come before its own.
	if err := f.FS.SyncDir(f.dir); err != nil {
		return err
	}
	if err := vfs.WriteFile(f.FS, path.Join(f.dir, readyFile), p.encode()); err != nil {
		return err
	}
	f.Logger.Info("fetched", "checkpoint", c.Name, "segments", len(p.Segments), "replace", p.Replace)
	return nil
}

// plan is the files to bring for one manifest.
type plan struct {
	ready
	after *log.SegmentInfo // the local block that the first segment continues; nil: none
}

// plan asks for a manifest and compares it with the local log.
func (f *fetcher) plan(ctx context.Context, to peer.Target) (*plan, error) {
	local, err := localLog(f.FS, f.DataDir)
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
	switch {
	case head.Last >= m.Checkpoint.HeadIndex:
		return nil, f.reaches(m)
	case m.PrevIndex > head.Last:
		p.Replace = true
	case head.Last == 0:
	case m.PrevIndex == head.Last && m.PrevChain != checkpoint.Chain(head.Chain):
		return nil, differs(head.Last, head.Chain, m.PrevChain)
	case m.PrevIndex < head.Last && m.Asked == nil:
		return nil, fmt.Errorf("the other node does not hold its chain at index %d", head.Last)
	case m.PrevIndex < head.Last && *m.Asked != checkpoint.Chain(head.Chain):
		return nil, differs(head.Last, head.Chain, *m.Asked)
	}
	if !p.Replace {
		// Local segments stay as far as they are whole: a chain stands for all
		// that came before it. One that is not is brought whole.
		for len(p.Segments) > 0 && p.Segments[0].Last <= head.Last {
			p.PrevIndex, p.PrevChain = p.Segments[0].Last, p.Segments[0].Chain
			p.Segments = p.Segments[1:]
		}
		begins := head.Last == 0
		for _, s := range local {
			begins = begins || s.First == p.Segments[0].First && s.PrevIndex == p.PrevIndex
			if s.Last == p.PrevIndex {
				if s.Chain != p.PrevChain {
					return nil, differs(s.Last, s.Chain, p.PrevChain)
				}
				p.after = &s
			}
		}
		if !begins && p.after == nil {
			return nil, fmt.Errorf("%w: the other node's segment %s begins inside of one", ErrDiffers, p.Segments[0].Name)
		}
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := f.prepare(p); err != nil {
		return nil, err
	}
	f.Logger.Info("fetching", "from", to.Node, "addr", to.Addr, "checkpoint", p.Checkpoint.Name, "segments", len(p.Segments), "replace", p.Replace)
	return p, nil
}

func differs(index uint64, here, there [32]byte) error {
	return fmt.Errorf("%w: at index %d its chain is %x, the other node's %x", ErrDiffers, index, here, there)
}

// localLog looks at the local log, which may be open.
func localLog(fsys vfs.FS, dataDir string) ([]log.SegmentInfo, error) {
	l, err := log.OpenReadOnly(log.Options{FS: fsys, Dir: path.Join(dataDir, datadir.LogDir)})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Segments(), nil
}

// reaches is the error of a manifest whose end the local log has.
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
		return differs(m.Checkpoint.HeadIndex, chain, m.Checkpoint.Chain)
	}
	return ErrNothingLacking
}

func (f *fetcher) manifest(ctx context.Context, to peer.Target, asked uint64) (*Manifest, error) {
	b, _, err := f.Net.Call(ctx, to, callManifest, encode(manifestRequest{Cluster: f.ClusterID, MinIndex: f.MinIndex, Asked: asked}))
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	if err = json.Unmarshal(b, m); err == nil {
		err = m.check()
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: manifest: %w", ErrWrong, err)
	case m.Cluster != f.ClusterID:
		return nil, fmt.Errorf("%w: a manifest of cluster %q", ErrWrong, m.Cluster)
	case m.Checkpoint.Index < f.MinIndex:
		return nil, fmt.Errorf("%w: a checkpoint of index %d, asked for %d or above", ErrWrong, m.Checkpoint.Index, f.MinIndex)
	}
	return m, nil
}

// prepare removes files that the plan has no use for, and looks whether the rest
// has room.
func (f *fetcher) prepare(p *plan) error {
	if err := f.FS.MkdirAll(f.dir); err != nil {
		return err
	}
	names, err := f.FS.List(f.dir)
	if err != nil {
		return err
	}
	want := map[string]int64{p.Checkpoint.Name: p.Checkpoint.Size}
	for _, s := range p.Segments {
		want[s.Name], want[log.SideFileName(s.First)] = s.Size, 0
	}
	delete(want, log.SideFileName(p.Segments[len(p.Segments)-1].First)) // it will not be sealed
	need := int64(reserveBytes)
	for _, size := range want {
		need += size
	}
	var useless []string
	for _, name := range names {
		size, ok := want[name]
		if !ok {
			useless = append(useless, name)
		} else if info, err := f.FS.Stat(path.Join(f.dir, name)); err != nil {
			return err
		} else {
			need -= min(size, info.Size)
		}
	}
	if err := drop(f.FS, f.dir, useless...); err != nil || f.FreeBytes == nil {
		return err
	}
	free, err := f.FreeBytes()
	if err != nil {
		return fmt.Errorf("free space: %w", err)
	}
	if uint64(need) > free {
		return fmt.Errorf("%w: %d bytes are needed (%d of them to stay free), %d are free", ErrNoSpace, need, reserveBytes, free)
	}
	return nil
}

// file brings one file and verifies it. Bytes that are there from an earlier time,
// and are not right, are brought again.
func (f *fetcher) file(ctx context.Context, to peer.Target, dir, name string, size int64, verify func() error) error {
	for {
		had, err := f.download(ctx, to, dir, name, size)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err = verify(); err == nil || !errors.Is(err, ErrWrong) {
			return err
		}
		if derr := drop(f.FS, f.dir, name); derr != nil || had == 0 {
			return errors.Join(err, derr)
		}
	}
}

// download completes a file and makes it durable. It returns how many bytes were
// there before.
func (f *fetcher) download(ctx context.Context, target peer.Target, dir, name string, size int64) (had int64, err error) {
	file, err := f.FS.OpenReadWrite(path.Join(f.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		file, err = f.FS.Create(path.Join(f.dir, name))
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if had, err = file.Size(); err != nil {
		return 0, err
	}
	if had > size {
		// Of a newer checkpoint's manifest: this one ends earlier.
		if err := file.Truncate(size); err != nil {
			return had, err
		}
	}
	had = min(had, size)
	if had < size {
		err = f.copy(ctx, target, "/"+dir+"/"+name, file, had, size)
	}
	if err == nil {
		// Also where nothing was added: after a kill it may be in the page cache only.
		err = f.sync(file)
	}
	return had, err
}

// sync makes a file's bytes durable. After an error nobody knows which of them
// are, and a second sync would not say: they are thrown away.
func (f *fetcher) sync(file vfs.File) error {
	err := file.Sync()
	if err != nil {
		err = errors.Join(err, file.Truncate(0))
	}
	return err
}

// copy brings the bytes from..to of a file.
func (f *fetcher) copy(ctx context.Context, target peer.Target, name string, file vfs.File, from, to int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(idleTime, func() { cancel(fmt.Errorf("nothing has come for %v", idleTime)) })
	defer idle.Stop()
	in, err := f.Net.Get(ctx, target, name, from, to)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	defer in.Close()
	buf := make([]byte, min(chunkBytes, to-from))
	for off, synced := from, from; off < to; {
		n, err := io.ReadFull(in, buf[:min(int64(len(buf)), to-off)])
		if n > 0 {
			idle.Reset(idleTime)
			if _, err := file.WriteAt(buf[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("at %d of %d bytes: %w", off, to, err), context.Cause(ctx))
		}
		if off-synced >= syncBytes {
			if err := f.sync(file); err != nil {
				return err
			}
			synced = off
		}
		if time.Since(f.logged) >= logEvery {
			f.logged = time.Now()
			f.Logger.Info("fetching", "file", name, "bytes", off, "of", to)
		}
	}
	return nil
}

func damaged(err error) bool {
	_, ok := errors.AsType[*log.CorruptionError](err)
	return ok
}

// verifySegment verifies one of the plan's segments, and writes the side file of
// one that will be sealed, so that nobody waits for it when the log is opened.
func (f *fetcher) verifySegment(ctx context.Context, p *plan, i int) error {
	s := &p.Segments[i]
	found, err := log.ScanSegment(ctx, f.FS, f.dir, s.Name, s.Size, p.after)
	switch {
	case damaged(err):
		return fmt.Errorf("%w: %w", ErrWrong, err)
	case err != nil:
		return err
	case p.after == nil && (found.PrevIndex != p.PrevIndex || checkpoint.Chain(found.PrevChain) != p.PrevChain):
		return fmt.Errorf("%w: segment %s continues index %d, chain %x, not %d, %x", ErrWrong, s.Name, found.PrevIndex, found.PrevChain, p.PrevIndex, p.PrevChain)
	case found.Size != s.Size || found.Last != s.Last || checkpoint.Chain(found.Chain) != s.Chain:
		return fmt.Errorf("%w: segment %s has %d bytes up to index %d, chain %x, not %d, %d, %x", ErrWrong, s.Name, found.Size, found.Last, found.Chain, s.Size, s.Last, s.Chain)
	}
	p.after = &found.SegmentInfo
	if i == len(p.Segments)-1 {
		return nil
	}
	return vfs.WriteFile(f.FS, path.Join(f.dir, log.SideFileName(s.First)), found.Side)
}

func (f *fetcher) verifyCheckpoint(c *Checkpoint) error {
	meta, err := checkpoint.Verify(f.FS, f.dir, c.Name)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return err // this node's disk
	}
	if err == nil && (meta.ClusterID != f.ClusterID || meta.HeadIndex != c.HeadIndex || meta.Chain != c.Chain) {
		err = fmt.Errorf("checkpoint %s is of cluster %q, index %d, chain %x; the event log of %q, %d, %x",
			c.Name, meta.ClusterID, meta.HeadIndex, meta.Chain, f.ClusterID, c.HeadIndex, c.Chain)
	}
	if err != nil {
		// It may also be of a version that this program does not know; another
		// node may have one that it does.
		return fmt.Errorf("%w: %w", ErrWrong, err)
	}
	return nil
}

// drop removes files, durably. Those that are not there are removed already.
func drop(fsys vfs.FS, dir string, names ...string) error {
	gone := false
	for _, name := range names {
		err := fsys.Remove(path.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		gone = gone || err == nil
	}
	if !gone {
		return nil
	}
	return fsys.SyncDir(dir)
}

// Discard removes fetched files that are not in place: an aid for the next Fetch,
// which may hold contents that were erased since. Neither Fetch nor Install may
// run beside it.
func Discard(fsys vfs.FS, dataDir string) error {
	dir := path.Join(dataDir, datadir.IncomingDir)
	names, err := fsys.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
	case slices.Contains(names, installFile):
		err = ErrInstall
	default:
		// READY first: without it nothing else counts.
		if err = drop(fsys, dir, readyFile); err == nil {
			err = drop(fsys, dir, names...)
		}
		if err == nil {
			err = drop(fsys, dataDir, datadir.IncomingDir)
		}
	}
	if err != nil {
		return fmt.Errorf("discard fetched files: %w", err)
	}
	return nil
}
