package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Seed writes the checkpoint, with meta's Raft fields filled in, and the Raft store of a new data
// directory: the one voter of a cluster whose log goes on after that checkpoint.
type Seed func(dir string, node *datadir.Node, meta checkpoint.Meta, body io.WriterTo) error

// Into writes a new data directory that holds the state as of an instant: the log up to there
// unchanged, a checkpoint, a Raft store, and a node.json with a new cluster id, whose clock
// continues from that instant at the first start.
//
// target must not exist, or be empty, and not be inside this directory. It is written under another
// name and renamed at the end, so a crash leaves nothing at target, or all of it.
func (d *Dir) Into(ctx context.Context, to event.Instant, target string, seed Seed,
	progress func(done, total int64)) (*datadir.Node, error) {
	target, err := d.checkTarget(target)
	if err != nil {
		return nil, err
	}
	index, err := d.Log.To(to)
	if err != nil {
		return nil, err
	}
	if index < max(d.Log.First(), 1) {
		return nil, d.Log.OutOfRange("there is nothing before the first event to continue from", false)
	}
	state, _, err := d.stateAfter(ctx, index)
	if err != nil {
		return nil, err
	}
	return d.write(to, target, seed, func(logDir string) (origin, error) {
		end, err := d.copyLog(ctx, index, logDir, progress)
		end.Last = state.Index() // index may be one of Raft's own
		return origin{state: state, end: end}, err
	})
}

// origin is what a new data directory continues from.
type origin struct {
	state *projections.State
	end   log.SegmentInfo // of the log
	lost  []datadir.Lost
}

// write writes a new data directory with the log that fill writes, and that leads to the state that
// it returns.
func (d *Dir) write(to event.Instant, target string, seed Seed,
	fill func(logDir string) (origin, error)) (*datadir.Node, error) {
	tmp := target + ".replay-tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	logDir, raftDir := datadir.Path(tmp, datadir.LogDir), datadir.Path(tmp, datadir.RaftDir)
	for _, dir := range []string{logDir, raftDir, datadir.Path(tmp, datadir.CheckpointDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	from, err := fill(logDir)
	if err != nil {
		return nil, err
	}
	node := d.fork(&from, to)
	state := from.state.Freeze()
	defer state.Release()
	err = seed(tmp, node, checkpoint.Meta{
		Index: from.end.Last, HeadIndex: from.end.Last, Chain: from.end.Chain,
		Clock: state.Clock(), Digest: state.Digest(), ClusterID: node.ClusterID,
		CreatedAt: time.Now().UnixMilli(),
	}, state)
	if err != nil {
		return nil, err
	}
	if err := node.Write(tmp); err != nil {
		return nil, err
	}
	// The names in the directories, and then the directory's own.
	for _, dir := range []string{logDir, raftDir, tmp} {
		if err := (vfs.OS{}).SyncDir(dir); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Rename(tmp, target); err != nil {
		return nil, err
	}
	return node, (vfs.OS{}).SyncDir(filepath.Dir(target))
}

// ErrTarget is a target that must not be written to.
var ErrTarget = errors.New("target")

func (d *Dir) checkTarget(target string) (string, error) {
	abs, err := filepath.Abs(target)
	if err != nil {
		return "", err
	}
	source, err := filepath.Abs(d.Path)
	if err != nil {
		return "", err
	}
	// A link would make inside look like outside.
	if real, err := filepath.EvalSymlinks(source); err == nil {
		source = real
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrTarget, err)
	}
	abs = filepath.Join(parent, filepath.Base(abs))
	if abs == source || strings.HasPrefix(abs, source+string(filepath.Separator)) {
		return "", fmt.Errorf("%w: %s lies inside the data directory %s", ErrTarget, target, d.Path)
	}
	if info, err := os.Lstat(abs); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%w: %s exists and is not a directory", ErrTarget, target)
	}
	names, err := vfs.List(vfs.OS{}, abs)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%s is not empty", target)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return abs, nil
}

// fork returns the card of a copy: of a new cluster, so that the copy can't be mistaken for the
// original, with push disabled.
func (d *Dir) fork(from *origin, to event.Instant) *datadir.Node {
	clock := from.state.Clock()
	if to.Kind == event.InstantTime {
		clock = max(clock, to.Time)
	}
	n := datadir.NewNode(cmp.Or(d.Node.NodeID, "replay"), from.end.SegmentSize)
	n.Fork = &datadir.Fork{
		ClusterID: d.Node.ClusterID, Index: from.end.Last, ChainHash: from.end.Chain.String(),
		At: time.UnixMilli(clock).UTC(), MadeAt: n.CreatedAt, PushOff: true, Lost: from.lost,
	}
	return n
}

// copyLog copies the segments up to index, byte for byte (a damaged header is right in the copy);
// the last one is cut where the block at index ends. Segments that are copied whole keep their side
// files. It returns the last one.
func (d *Dir) copyLog(ctx context.Context, index uint64, target string,
	progress func(done, total int64)) (last log.SegmentInfo, err error) {
	source := d.LogDir()
	if _, err := d.FS.Stat(filepath.Join(source, "erasing.list")); err == nil {
		return last, errors.New("contents are being erased from this log; " +
			"start the node or wait for it to finish, then try again")
	}
	segments, err := d.Log.SegmentsTo(index)
	if err != nil {
		return last, err
	}
	type file struct {
		name   string
		header []byte
		size   int64
	}
	var files []file
	for i, s := range segments {
		files = append(files, file{s.Name, s.Header(), s.Size})
		size, err := d.FS.Stat(filepath.Join(source, s.SideFile))
		if err == nil && i < len(segments)-1 {
			files = append(files, file{s.SideFile, nil, size})
		}
	}
	var done, total int64
	for _, f := range files {
		total += f.size
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return last, err
		}
		err := d.copyFile(filepath.Join(source, f.name), filepath.Join(target, f.name), f.header, f.size)
		if err != nil {
			return last, fmt.Errorf("copy %s: %w", f.name, err)
		}
		if done += f.size; progress != nil {
			progress(done, total)
		}
	}
	return segments[len(segments)-1], nil
}

// copyFile copies the first n bytes of a file, durably. It begins with header in the copy.
func (d *Dir) copyFile(from, to string, header []byte, n int64) error {
	in, err := d.FS.OpenRead(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return vfs.Write(vfs.OS{}, to, func(w io.Writer) error {
		_, err := w.Write(header)
		if off := int64(len(header)); err == nil {
			_, err = io.CopyN(w, io.NewSectionReader(in, off, n-off), n-off)
		}
		return err
	})
}
