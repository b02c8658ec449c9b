package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"strings"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
)

// Source is the log that is archived.
type Source struct {
	FS             vfs.FS
	LogDir         string
	Checkpoints    string // directory
	Segments       []log.SegmentInfo
	RefreshErased  bool // look also whether contents of what is there were erased since
	CheckpointStep int  // a checkpoint for so many segments; 0: 8
	Logger         *slog.Logger
	// Progress, if not nil, is told the bytes of segments done and in all.
	Progress func(done, total int64)
}

// Written is what a run has done.
type Written struct {
	Segments    int    // new ones
	Refreshed   int    // written anew: contents were erased
	Checkpoints int    // new ones
	Bytes       int64  // of all these
	UpTo        uint64 // last index up to which every sealed segment of the log is in the archive; 0 none
}

// Write brings the sealed segments of a log that the archive lacks, oldest
// first. What it did stays done if it fails or is stopped: the next run goes
// on. Every segment is checked, every byte of it, before it is written, and
// read back afterwards.
func (a *Archive) Write(ctx context.Context, src Source) (Written, error) {
	var w Written
	if src.Logger == nil {
		src.Logger = slog.New(slog.DiscardHandler)
	}
	if src.Progress == nil {
		src.Progress = func(int64, int64) {}
	}
	cards, err := a.segments(ctx)
	if err != nil {
		return w, err
	}
	there := map[uint64]*card{}
	byLast := map[uint64]*card{}
	for _, c := range cards {
		there[c.First], byLast[c.Last] = c, c
	}
	var done, total int64
	for _, s := range src.Segments {
		if s.Sealed {
			total += s.Size
		}
	}
	for i := range src.Segments {
		s := &src.Segments[i]
		if !s.Sealed {
			break
		}
		if err := ctx.Err(); err != nil {
			return w, err
		}
		c := there[s.First]
		switch {
		case c != nil && (c.Chain != hexOf(s.Chain) || c.Last != s.Last):
			return w, fmt.Errorf("%w: its segment %s ends at index %d with chain %.16s…, the log's at index %d with chain %.16s…", ErrOther, s.Name, c.Last, c.Chain, s.Last, hexOf(s.Chain))
		case c == nil:
			if before := byLast[s.PrevIndex]; before != nil && before.Chain != hexOf(s.PrevChain) {
				return w, fmt.Errorf("%w: segment %s does not continue the archive's %s", ErrOther, s.Name, before.Name)
			}
			if c, err = a.putSegment(ctx, &src, s); err != nil {
				return w, err
			}
			// A run that was stopped before its card may have left bytes of which
			// contents were erased since.
			if err := a.dropOthers(ctx, c.Name); err != nil {
				return w, err
			}
			byLast[c.Last] = c
			w.Segments++
			w.Bytes += c.Bytes
		case src.RefreshErased:
			fresh, err := a.refresh(ctx, &src, s, c)
			if err != nil {
				return w, err
			}
			if fresh != nil {
				w.Refreshed++
				w.Bytes += fresh.Bytes
			}
		}
		w.UpTo = s.Last
		done += s.Size
		src.Progress(done, total)
	}
	return w, a.writeCheckpoints(ctx, &src, &w)
}

// putSegment checks a segment and writes it.
func (a *Archive) putSegment(ctx context.Context, src *Source, s *log.SegmentInfo) (*card, error) {
	// All of it, now: what is damaged here must not look like something that
	// was kept.
	scanned, err := log.ScanSegment(ctx, src.FS, src.LogDir, s.Name, s.Size, nil)
	if err != nil {
		return nil, err
	}
	if scanned.Chain != s.Chain || scanned.Last != s.Last || scanned.PrevChain != s.PrevChain {
		return nil, fmt.Errorf("archive segment %s: its file is not the one that the log knows", s.Name)
	}
	c := &card{
		Format: Format, Name: s.Name, First: s.First, Last: s.Last, PrevIndex: s.PrevIndex, PrevChain: hexOf(s.PrevChain),
		Chain: hexOf(s.Chain), ClockMS: s.Clock,
	}
	side, err := a.put(ctx, logFolder, s.SideFile, func() (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader(scanned.Side)), int64(len(scanned.Side)), nil
	})
	if err != nil {
		return nil, err
	}
	c.Side = &side
	if c.bytesOf, err = a.put(ctx, logFolder, s.Name, opened(src.FS, path.Join(src.LogDir, s.Name), s.Size)); err != nil {
		return nil, err
	}
	return c, a.putCard(ctx, logFolder, c)
}

// refresh writes a segment anew where its bytes are others than the archive's:
// contents were erased. nil where they are the same. Bytes of the segment that its
// card does not name are deleted, also those that an earlier run has left.
func (a *Archive) refresh(ctx context.Context, src *Source, s *log.SegmentInfo, was *card) (fresh *card, err error) {
	open := opened(src.FS, path.Join(src.LogDir, s.Name), s.Size)
	r, _, err := open()
	if err != nil {
		return nil, err
	}
	now, _, err := sum(&cancelled{ctx, r})
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if now != was.SHA256 {
		if fresh, err = a.putSegment(ctx, src, s); err != nil { // the same chain: only contents differ
			return nil, err
		}
		src.Logger.Info("segment archived anew: contents were erased", "segment", s.Name)
	}
	return fresh, a.dropOthers(ctx, s.Name)
}

// dropOthers deletes all bytes of a segment that its card does not name.
func (a *Archive) dropOthers(ctx context.Context, segment string) error {
	name := cardName(logFolder, segment)
	// As it is now: another node may have written it meanwhile.
	b, err := a.readAll(ctx, name)
	var named card
	if err == nil {
		err = json.Unmarshal(b, &named)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %s: %w", a.store, name, err)
	}
	prefix := strings.TrimSuffix(name, ".json") + "-"
	objects, err := a.store.List(ctx, prefix)
	if err != nil {
		return fmt.Errorf("archive %s: %w", a.store, err)
	}
	for _, o := range objects {
		if o.Name == named.Object || named.Side != nil && o.Name == named.Side.Object {
			continue
		}
		if err := a.store.Delete(ctx, o.Name); err != nil {
			return err
		}
	}
	if d, ok := a.store.(*Dir); ok {
		return d.dropTemp(prefix)
	}
	return nil
}

// opened opens the first n bytes of a file.
func opened(fsys vfs.FS, name string, n int64) func() (io.ReadCloser, int64, error) {
	return func() (io.ReadCloser, int64, error) {
		f, err := fsys.OpenRead(name)
		if err != nil {
			return nil, 0, err
		}
		return readCloser{io.NewSectionReader(f, 0, n), f}, n, nil
	}
}

// put writes bytes under the name of what they are, unless they are there
// already, and reads them back.
func (a *Archive) put(ctx context.Context, folder, file string, open func() (io.ReadCloser, int64, error)) (bytesOf, error) {
	r, size, err := open()
	if err != nil {
		return bytesOf{}, err
	}
	hash, n, err := sum(&cancelled{ctx, r})
	if err = errors.Join(err, r.Close()); err != nil {
		return bytesOf{}, err
	}
	if n != size {
		return bytesOf{}, fmt.Errorf("archive %s: it has %d bytes, not %d", file, n, size)
	}
	b := bytesOf{Object: objectName(folder, file, hash), Bytes: size, SHA256: hash}
	// A run that was stopped may have left just these.
	if a.check(ctx, &b) == nil {
		return b, nil
	}
	if r, size, err = open(); err != nil {
		return b, err
	}
	err = a.store.Put(ctx, b.Object, r, size)
	if err = errors.Join(err, r.Close()); err != nil {
		return b, fmt.Errorf("archive %s: %w", file, err)
	}
	return b, a.check(ctx, &b)
}

// check reads an object and compares it with what it is said to be.
func (a *Archive) check(ctx context.Context, b *bytesOf) error {
	r, err := a.store.Get(ctx, b.Object, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	hash, n, err := sum(r)
	if err != nil {
		return fmt.Errorf("read back %s: %w", b.Object, err)
	}
	if n != b.Bytes || hash != b.SHA256 {
		return &CorruptError{a.store.String(), b.Object, fmt.Sprintf("read back, it is %d bytes with SHA-256 %.16s…, not %d with %.16s…", n, hash, b.Bytes, b.SHA256)}
	}
	return nil
}

// putCard makes a file visible.
func (a *Archive) putCard(ctx context.Context, folder string, c *card) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	name := cardName(folder, c.Name)
	if err := a.store.Put(ctx, name, bytes.NewReader(b), int64(len(b))); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	back, err := a.readAll(ctx, name)
	if err != nil || !bytes.Equal(b, back) {
		return fmt.Errorf("archive %s: read back, the card of %s is another: %w", a.store, c.Name, err)
	}
	a.mu.Lock()
	a.cards[name] = c
	a.mu.Unlock()
	return nil
}

// writeCheckpoints brings the checkpoint from which the archive can be folded,
// where the log's beginning was gone before it could be archived, and one for
// every few segments, so that a state is near every instant.
func (a *Archive) writeCheckpoints(ctx context.Context, src *Source, w *Written) error {
	metas, _, err := checkpoint.List(src.FS, src.Checkpoints)
	if err != nil || len(metas) == 0 || w.UpTo == 0 {
		return err
	}
	cards, err := a.list(ctx, checkpointFolder)
	if err != nil {
		return err
	}
	segments, err := a.segments(ctx)
	if err != nil {
		return err
	}
	newest := uint64(0)
	for _, c := range cards {
		newest = max(newest, c.HeadIndex)
	}
	step := src.CheckpointStep
	if step <= 0 {
		step = 8
	}
	for i := len(metas) - 1; i >= 0; i-- { // oldest first
		m := &metas[i]
		if m.HeadIndex > w.UpTo || m.HeadIndex <= newest && len(cards) > 0 {
			continue
		}
		between := 0
		for _, s := range segments {
			if s.Last > newest && s.Last <= m.HeadIndex {
				between++
			}
		}
		if needed := segments[0].PrevIndex > 0 && newest == 0 && m.HeadIndex >= segments[0].PrevIndex; !needed && between < step {
			continue
		}
		if err := a.putCheckpoint(ctx, src, m, w); errors.Is(err, fs.ErrNotExist) {
			continue // thinned out under our eyes
		} else if err != nil {
			return err
		}
		newest = m.HeadIndex
	}
	return nil
}

func (a *Archive) putCheckpoint(ctx context.Context, src *Source, m *checkpoint.Meta, w *Written) error {
	if _, err := checkpoint.Verify(src.FS, src.Checkpoints, m.Name()); err != nil {
		if errors.Is(err, checkpoint.ErrCorrupt) {
			src.Logger.Warn("a checkpoint is not archived: it is damaged", "error", err)
			return nil
		}
		return err
	}
	b, err := a.put(ctx, checkpointFolder, m.Name(), func() (io.ReadCloser, int64, error) {
		return checkpoint.OpenRaw(src.FS, src.Checkpoints, m.Name())
	})
	if err != nil {
		return err
	}
	w.Checkpoints++
	w.Bytes += b.Bytes
	return a.putCard(ctx, checkpointFolder, &card{Format: Format, Name: m.Name(), bytesOf: b, HeadIndex: m.HeadIndex})
}
