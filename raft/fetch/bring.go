package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// encode makes a request's body. It cannot fail: numbers and strings.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// open opens a file of incoming/ for writing, making it if it is missing.
func (f *fetcher) open(name string) (vfs.File, int64, error) {
	file, err := f.FS.OpenReadWrite(path.Join(f.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		file, err = f.FS.Create(path.Join(f.dir, name))
	}
	if err != nil {
		return nil, 0, err
	}
	size, err := file.Size()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, size, nil
}

// count takes in that n more bytes of the plan are there.
func (f *fetcher) count(n int64) {
	f.done += n
	f.Progress(f.done, f.total)
	if t := 10 * f.done / max(f.total, 1); t > f.tenths {
		f.tenths = t
		f.Logger.Info("fetching what this node lacks", "percent", 10*t, "bytes", f.done, "of", f.total)
	}
}

// segments brings the plan's segments, the oldest first: each is verified from
// the end of the one before.
func (f *fetcher) segments(ctx context.Context, to peer.Target, p *plan) error {
	after := p.after
	for i := range p.Segments {
		end, err := f.segment(ctx, to, p, &p.Segments[i], after, i == len(p.Segments)-1)
		if err != nil {
			return fmt.Errorf("segment %s: %w", p.Segments[i].Name, err)
		}
		after = &end
	}
	return nil
}

// segment brings one segment. What is there of it already, from an earlier Fetch
// or in the local log, is verified first and kept as far as it is right: so all
// that is wrong afterwards has come from this node.
func (f *fetcher) segment(ctx context.Context, to peer.Target, p *plan, s *Segment, after *log.End, last bool) (end log.End, err error) {
	if w, ok := f.whole[s.Name]; ok && w.Size == s.Size && w.Last == s.Last && checkpoint.Chain(w.Chain) == s.Chain && (last || w.side) {
		if ok, err := hasSize(f.FS, path.Join(f.dir, s.Name), s.Size); ok || err != nil {
			return w.end, err
		}
	}
	delete(f.whole, s.Name)
	file, size, err := f.open(s.Name)
	if err != nil {
		return end, err
	}
	defer func() {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	if size == 0 && s.First == p.begun.First {
		if size, err = f.copyLocal(ctx, file, s, p.begun.Size); err != nil {
			return end, err
		}
	}
	var found log.ScannedSegment
	if size > 0 {
		found, err = f.scan(ctx, p, s, after)
		if err == nil && found.Size == s.Size {
			if size > s.Size {
				// Of a newer checkpoint's manifest: this one ends earlier.
				err = file.Truncate(s.Size)
			}
			if err == nil {
				// Also what nothing was added to: after a kill it may be in the
				// page cache only.
				err = f.sync(file)
			}
			if err == nil {
				err = f.verified(s, &found, last)
			}
			return found.End, err
		}
		if err != nil && !damaged(err) {
			return end, err
		}
		good := found.Size // where the last good block ends
		f.count(good - min(size, s.Size))
		if good < size {
			if err := file.Truncate(good); err != nil {
				return end, err
			}
		}
		size = good
	}
	if err := f.stream(ctx, to, streamSegment, fileRequest{Name: s.Name, From: size, To: s.Size}, file, size, s.Size); err != nil {
		return end, err
	}
	if err := f.sync(file); err != nil {
		return end, err
	}
	found, err = f.scan(ctx, p, s, after)
	if err == nil && found.Size != s.Size {
		err = &log.CorruptionError{Segment: s.Name, Offset: found.Size, LastGood: found.Last, Reason: fmt.Sprintf("it ends here, of %d bytes", s.Size)}
	}
	if damaged(err) {
		f.count(found.Size - s.Size)
		return end, errors.Join(fmt.Errorf("%w: %w", ErrWrong, err), file.Truncate(found.Size))
	} else if err != nil {
		return end, err
	}
	return found.End, f.verified(s, &found, last)
}

func damaged(err error) bool {
	_, ok := errors.AsType[*log.CorruptionError](err)
	return ok
}

// scan verifies what is there of a segment. It also is damage if it is whole but
// not the segment that the manifest, and the local log, know.
func (f *fetcher) scan(ctx context.Context, p *plan, s *Segment, after *log.End) (log.ScannedSegment, error) {
	found, err := log.ScanSegment(ctx, f.FS, f.dir, s.Name, s.Size, after)
	wrong := func(format string, args ...any) error {
		bad := &log.CorruptionError{Segment: s.Name, LastGood: found.PrevIndex, Reason: fmt.Sprintf(format, args...)}
		found = log.ScannedSegment{} // nothing of it is of use
		return bad
	}
	if found.Size == 0 {
		return found, err
	}
	if after == nil {
		// The first one: it is what there is of the log's beginning.
		if found.PrevIndex != p.PrevIndex || checkpoint.Chain(found.PrevChain) != p.PrevChain {
			err = wrong("it continues index %d, chain %x, not %d, %x", found.PrevIndex, found.PrevChain, p.PrevIndex, p.PrevChain)
			return found, err
		}
	}
	if err == nil && found.Size == s.Size && (found.Last != s.Last || checkpoint.Chain(found.Chain) != s.Chain) {
		err = wrong("it ends at index %d, chain %x, not %d, %x", found.Last, found.Chain, s.Last, s.Chain)
	}
	return found, err
}

// verified notes that a segment is whole. It writes the side file of one that
// will be sealed, so that nobody waits for it when the log is opened; only the
// last one is not.
func (f *fetcher) verified(s *Segment, found *log.ScannedSegment, last bool) error {
	if !last {
		if err := vfs.WriteFile(f.FS, path.Join(f.dir, log.SideFileName(s.First)), found.Side); err != nil {
			return err
		}
	}
	f.whole[s.Name] = verified{found.SegmentInfo, found.End, !last}
	return nil
}

// copyLocal begins a file with the blocks that the local log has of it.
func (f *fetcher) copyLocal(ctx context.Context, file vfs.File, s *Segment, size int64) (int64, error) {
	in, err := f.FS.OpenRead(path.Join(f.DataDir, datadir.LogDir, s.Name))
	if err != nil {
		return 0, err
	}
	defer in.Close()
	size = min(size, s.Size)
	buf := make([]byte, min(f.chunk, size))
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return off, err
		}
		b := buf[:min(int64(len(buf)), size-off)]
		if n, err := in.ReadAt(b, off); n < len(b) {
			return off, fmt.Errorf("read local segment %s at %d: %w", s.Name, off, err)
		}
		if _, err := file.WriteAt(b, off); err != nil {
			return off, err
		}
		off += int64(len(b))
		f.count(int64(len(b)))
	}
	return size, nil
}

// sync makes a file's bytes durable. After an error nobody knows which of them
// are, and a second sync would not tell: they are thrown away.
func (f *fetcher) sync(file vfs.File) error {
	err := file.Sync()
	if err != nil {
		err = errors.Join(err, file.Truncate(0))
	}
	return err
}

// stream brings the bytes from..to of a file.
func (f *fetcher) stream(ctx context.Context, target peer.Target, name string, q fileRequest, file vfs.File, from, to int64) error {
	if from == to {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(f.Idle, func() { cancel(fmt.Errorf("nothing has come for %v", f.Idle)) })
	defer idle.Stop()
	in, err := f.Net.Stream(ctx, target, name, encode(q))
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	defer in.Close()
	buf := make([]byte, min(f.chunk, to-from))
	unsynced := int64(0)
	for off := from; off < to; {
		n, err := io.ReadFull(in, buf[:min(int64(len(buf)), to-off)])
		if n > 0 {
			idle.Reset(f.Idle)
			if _, err := file.WriteAt(buf[:n], off); err != nil {
				return err
			}
			off, unsynced = off+int64(n), unsynced+int64(n)
			f.brought += int64(n)
			f.count(int64(n))
			if unsynced >= f.syncEvery {
				unsynced = 0
				if err := f.sync(file); err != nil {
					return err
				}
			}
		}
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return errors.Join(fmt.Errorf("%s: at %d of %d bytes: %w", q.Name, off, to, err), context.Cause(ctx))
		}
	}
	return nil
}
