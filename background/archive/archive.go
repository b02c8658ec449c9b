// Package archive keeps the sealed segments of an event log, and some checkpoints, in a directory:
// retention may then delete them from the data directories, and replay reads them from here.
//
//	archive.json                      the cluster it is of
//	log/<first index>.seg, .idx       a segment, as in a data directory
//	log/<first index>.json            its card: the segment is there, whole
//	checkpoints/<name>.ckpt, .json    a checkpoint and its card
//
// A file is written under another name, synced, renamed, read back and compared with its SHA-256;
// only then is its card written. A file without a card does not count: the next run replaces it.
// Two writers do no harm: all nodes' segments are the same, except for erased contents.
package archive

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
)

// Format is the version of archives that this program reads and writes.
const Format = 1

const (
	aboutName        = "archive.json"
	logFolder        = "log"
	checkpointFolder = "checkpoints"
)

// about is archive.json.
type about struct {
	Format       int    `json:"format"`
	ClusterID    string `json:"cluster_id"`
	SegmentBytes int64  `json:"segment_bytes"`
}

// card records that a segment or a checkpoint is complete.
type card struct {
	Format int    `json:"format"`
	Name   string `json:"name"` // of the file beside it
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Of a segment.
	First     uint64 `json:"first_index,omitempty"`
	Last      uint64 `json:"last_index,omitempty"`
	PrevIndex uint64 `json:"previous_index,omitempty"`
	PrevChain string `json:"previous_chain_hash,omitempty"`
	Chain     string `json:"chain_hash,omitempty"`
	ClockMS   int64  `json:"clock_ms,omitempty"`
	// Of a checkpoint.
	HeadIndex uint64 `json:"head_index,omitempty"`
}

// Archive is an archive that was opened. Its methods may be called from any goroutine.
type Archive struct {
	fs    vfs.FS
	dir   string
	about about
}

var (
	// ErrNone is returned if there is no archive yet.
	ErrNone = errors.New("there is no archive")
	// ErrOther is returned for an archive of another cluster or of another history of it.
	ErrOther = errors.New("the archive is of another history")
)

// corrupt returns an error about a file that is not what its card says.
func (a *Archive) corrupt(file, format string, args ...any) error {
	return fmt.Errorf("archive %s: %s: %w", a.dir, file, fmt.Errorf(format, args...))
}

// CheckDir returns an error unless name can be a directory's. An object store is reached through a
// mounted or synchronised directory.
func CheckDir(name string) error {
	if scheme, _, isURL := strings.Cut(name, "://"); isURL { // what follows may hold credentials
		return fmt.Errorf("archive: must be a directory, got a %.20s:// URL: "+
			"mount or synchronise the object store and name that directory", scheme)
	}
	if name == "" {
		return errors.New("archive: must be a directory, got an empty name")
	}
	return nil
}

// Open opens an existing archive.
func Open(fsys vfs.FS, dir string) (*Archive, error) {
	a := &Archive{fs: fsys, dir: dir}
	err := a.read(aboutName, &a.about, &a.about.Format)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s", ErrNone, dir)
	}
	return a, err
}

// OpenFor opens a cluster's archive, and creates it if there is none.
func OpenFor(fsys vfs.FS, dir, clusterID string, segmentBytes int64) (*Archive, error) {
	a, err := Open(fsys, dir)
	if errors.Is(err, ErrNone) {
		a = &Archive{fs: fsys, dir: dir, about: about{Format, clusterID, segmentBytes}}
		if err = a.putJSON(context.Background(), aboutName, &a.about); err == nil {
			a, err = Open(fsys, dir) // what is there now: another cluster's may have come first
		}
	}
	if err != nil {
		return nil, err
	}
	if a.about.ClusterID != clusterID {
		return nil, fmt.Errorf("%w: %s is of cluster %s, not %s",
			ErrOther, dir, a.about.ClusterID, clusterID)
	}
	return a, nil
}

// ClusterID returns the cluster that the archive is of.
func (a *Archive) ClusterID() string { return a.about.ClusterID }

func (a *Archive) String() string { return a.dir }

// read reads a JSON file of the archive into v, whose format it checks.
func (a *Archive) read(name string, v any, format *int) error {
	b, err := vfs.ReadFile(a.fs, path.Join(a.dir, name))
	if err != nil {
		return fmt.Errorf("archive %s: %w", a.dir, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return a.corrupt(name, "%w", err)
	}
	if *format > Format {
		return fmt.Errorf("archive %s: %s has format %d, this binary supports up to %d",
			a.dir, name, *format, Format)
	}
	return nil
}

func (a *Archive) putJSON(ctx context.Context, name string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = a.put(ctx, name, bytes.NewReader(b))
	}
	return err
}

// cards returns the cards in a folder, by name: those of segments by first index.
func (a *Archive) cards(folder string) (out []*card, err error) {
	names, err := a.fs.List(path.Join(a.dir, folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("archive %s: %w", a.dir, err)
	}
	for _, name := range names {
		if path.Ext(name) != ".json" {
			continue
		}
		c := &card{}
		if err := a.read(path.Join(folder, name), c, &c.Format); err != nil {
			return nil, err
		}
		if cardName(c.Name) != name {
			return nil, a.corrupt(name, "the card is that of %s", c.Name)
		}
		out = append(out, c)
	}
	return out, nil
}

// cardName returns the name of the card of a file.
func cardName(file string) string { return strings.TrimSuffix(file, path.Ext(file)) + ".json" }

// Segments returns the complete segments, oldest first.
func (a *Archive) Segments() ([]log.SegmentInfo, error) {
	cards, err := a.cards(logFolder)
	out := make([]log.SegmentInfo, len(cards))
	for i, c := range cards {
		out[i] = log.SegmentInfo{
			Name: c.Name, SideFile: log.SideFileName(c.First), First: c.First, Last: c.Last,
			PrevIndex: c.PrevIndex, PrevChain: unhex(c.PrevChain), Chain: unhex(c.Chain),
			Clock: c.ClockMS, Size: c.Bytes, Sealed: true,
		}
	}
	return out, err
}

func hexOf(chain [32]byte) string { return hex.EncodeToString(chain[:]) }

func unhex(s string) (chain [32]byte) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(chain) {
		copy(chain[:], b)
	}
	return chain
}

// tempMark is in the names of files that are not finished.
const tempMark = ".tmp-"

// put writes a file durably and reads it back. It returns the SHA-256 of the bytes. Until it is
// complete, readers see the file that was there before, or none. Unfinished files of earlier runs
// are removed; if another writer is writing one, its put fails and is retried.
func (a *Archive) put(ctx context.Context, name string, r io.Reader) (sum string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("archive %s: write %s: %w", a.dir, name, err)
		}
	}()
	target := path.Join(a.dir, name)
	dir := path.Dir(target)
	if err := a.fs.MkdirAll(dir); err != nil {
		return "", err
	}
	names, err := a.fs.List(dir)
	if err != nil {
		return "", err
	}
	for _, old := range names {
		if !strings.HasPrefix(old, path.Base(name)+tempMark) {
			continue
		}
		err := a.fs.Remove(path.Join(dir, old))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	temp := target + tempMark + rand.Text()
	f, err := a.fs.Create(temp)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.NewOffsetWriter(f, 0), io.TeeReader(&cancelled{ctx, r}, h))
	if err == nil {
		err = f.Sync() // before the rename: a name must never lead to bytes that are not durable
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, a.fs.Remove(temp))
	}
	if err := a.fs.Rename(temp, target); err != nil {
		return "", err
	}
	if err := a.fs.SyncDir(dir); err != nil {
		return "", err
	}
	sum = hex.EncodeToString(h.Sum(nil))
	back, err := sumOf(ctx, a.fs, target, -1)
	if err == nil && back != sum {
		err = a.corrupt(name, "read back, it has another SHA-256")
	}
	return sum, err
}

// sumOf returns the SHA-256 of the first n bytes of a file, for n < 0 of all.
func sumOf(ctx context.Context, fsys vfs.FS, name string, n int64) (string, error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return "", err
	}
	if n < 0 {
		n, err = f.Size()
	}
	h := sha256.New()
	if err == nil {
		_, err = io.Copy(h, &cancelled{ctx, io.NewSectionReader(f, 0, n)})
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// cancelled reads until its context ends.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// Source is the log that is archived.
type Source struct {
	FS            vfs.FS
	LogDir        string
	Checkpoints   string // directory
	Segments      []log.SegmentInfo
	RefreshErased bool // also replace archived segments in which contents were erased since
}

// Written is the result of a run.
type Written struct {
	Segments    int    // new ones
	Refreshed   int    // written again: contents were erased
	Checkpoints int    // new ones
	Bytes       int64  // of all these
	UpTo        uint64 // every sealed segment up to this index is in the archive; 0 none
}

// Write copies the sealed segments of a log that the archive lacks, oldest first. If it fails or is
// stopped, the next run continues. Every byte of a segment is checked before it is written, and
// read back afterwards. progress, if not nil, is called with the bytes of segments done and in all.
func (a *Archive) Write(ctx context.Context, src Source, progress func(done, total int64)) (
	w Written, err error) {
	cards, err := a.cards(logFolder)
	if err != nil {
		return w, err
	}
	byFirst, byLast := map[uint64]*card{}, map[uint64]*card{}
	for _, c := range cards {
		byFirst[c.First], byLast[c.Last] = c, c
	}
	open := func(s log.SegmentInfo) bool { return !s.Sealed }
	sealed := slices.DeleteFunc(slices.Clone(src.Segments), open)
	var done, total int64
	for _, s := range sealed {
		total += s.Size
	}
	for _, s := range sealed {
		c, before := byFirst[s.First], byLast[s.PrevIndex]
		switch {
		case c != nil:
			fresh, err := a.refresh(ctx, &src, &s, c)
			if err != nil {
				return w, err
			}
			if fresh {
				w.Refreshed++
				w.Bytes += s.Size
			}
		case before != nil && before.Chain != hexOf(s.PrevChain):
			return w, fmt.Errorf("%w: segment %s does not continue the archive's %s",
				ErrOther, s.Name, before.Name)
		default:
			if c, err = a.putSegment(ctx, &src, &s); err != nil {
				return w, err
			}
			byLast[c.Last] = c
			w.Segments++
			w.Bytes += c.Bytes
		}
		w.UpTo = s.Last
		if done += s.Size; progress != nil {
			progress(done, total)
		}
	}
	return w, a.writeCheckpoints(ctx, &src, &w)
}

// putSegment checks a segment and writes it.
func (a *Archive) putSegment(ctx context.Context, src *Source, s *log.SegmentInfo) (*card, error) {
	// Every byte, now: damage must not be archived.
	scanned, err := log.ScanSegment(ctx, src.FS, src.LogDir, s.Name, s.Size, nil)
	if err != nil {
		return nil, err
	}
	if scanned.Chain != s.Chain || scanned.Last != s.Last || scanned.PrevChain != s.PrevChain {
		return nil, fmt.Errorf("archive segment %s: its file differs from the log's index", s.Name)
	}
	_, err = a.put(ctx, path.Join(logFolder, s.SideFile), bytes.NewReader(scanned.Side))
	if err != nil {
		return nil, err
	}
	f, err := src.FS.OpenRead(path.Join(src.LogDir, s.Name))
	if err != nil {
		return nil, err
	}
	sum, err := a.put(ctx, path.Join(logFolder, s.Name), io.NewSectionReader(f, 0, s.Size))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	c := &card{
		Format: Format, Name: s.Name, Bytes: s.Size, SHA256: sum, First: s.First, Last: s.Last,
		PrevIndex: s.PrevIndex, PrevChain: hexOf(s.PrevChain), Chain: hexOf(s.Chain),
		ClockMS: s.Clock,
	}
	return c, a.putJSON(ctx, path.Join(logFolder, cardName(c.Name)), c)
}

// refresh compares a segment with the archive's and, if src asks for it, writes it again if its
// bytes differ: contents were erased, the chain is the same. It reports whether it wrote.
func (a *Archive) refresh(ctx context.Context, src *Source, s *log.SegmentInfo, c *card) (
	bool, error) {
	if hexOf(s.Chain) != c.Chain || s.Last != c.Last {
		return false, fmt.Errorf("%w: its segment %s ends at index %d with chain %.16s…, "+
			"the log's at index %d with chain %.16s…",
			ErrOther, s.Name, c.Last, c.Chain, s.Last, hexOf(s.Chain))
	}
	if !src.RefreshErased {
		return false, nil
	}
	now, err := sumOf(ctx, src.FS, path.Join(src.LogDir, s.Name), s.Size)
	if err != nil || now == c.SHA256 {
		return false, err
	}
	_, err = a.putSegment(ctx, src, s)
	return err == nil, err
}

// Erase removes erased contents from the archive, and returns the number of segments that it wrote.
// Segments that the log has are copied again; in older ones the contents are overwritten here.
// Segments after the log's end are left alone.
func (a *Archive) Erase(ctx context.Context, src Source, erased []event.Ref) (n int, err error) {
	src.RefreshErased = true
	cards, err := a.cards(logFolder)
	if err != nil {
		return 0, err
	}
	for _, c := range cards {
		refs := slices.DeleteFunc(slices.Clone(erased), func(r event.Ref) bool {
			return r.Index < c.First || r.Index > c.Last
		})
		i := slices.IndexFunc(src.Segments, func(s log.SegmentInfo) bool {
			return s.First == c.First && s.Sealed
		})
		wrote := false
		switch {
		case len(refs) == 0:
		case i >= 0:
			wrote, err = a.refresh(ctx, &src, &src.Segments[i], c)
		case len(src.Segments) == 0 || c.First < src.Segments[0].First:
			wrote, err = a.eraseIn(ctx, c, refs)
		}
		if err != nil {
			return n, fmt.Errorf("archive %s: erase in segment %s: %w", a.dir, c.Name, err)
		}
		if wrote {
			n++
		}
	}
	return n, nil
}

// eraseIn opens one archived segment as a log, erases in it, and archives that. It does so in
// memory: the bytes must not be written anywhere else meanwhile.
func (a *Archive) eraseIn(ctx context.Context, c *card, refs []event.Ref) (bool, error) {
	b, err := vfs.ReadFile(a.fs, path.Join(a.dir, logFolder, c.Name))
	if err != nil {
		return false, err
	}
	const dir = "/log"
	disk := vfs.NewMem()
	if err := disk.MkdirAll(dir); err != nil {
		return false, err
	}
	disk.Put(path.Join(dir, c.Name), b)
	l, err := log.Open(log.Options{
		FS: disk, Dir: dir, SegmentSize: a.about.SegmentBytes, Durable: c.Last,
	})
	if err != nil {
		return false, err
	}
	err = l.Erase(refs)
	segments := l.Segments()
	if err = errors.Join(err, l.Close()); err != nil {
		return false, err
	}
	if len(segments) != 1 || hexOf(segments[0].Chain) != c.Chain {
		return false, a.corrupt(c.Name, "it is not what its card says")
	}
	s := &segments[0]
	s.Name, s.SideFile = c.Name, log.SideFileName(c.First)
	return a.refresh(ctx, &Source{FS: disk, LogDir: dir, RefreshErased: true}, s, c)
}

// checkpointStep is how many segments have a checkpoint, so that a state is near every instant.
const checkpointStep = 8

// writeCheckpoints copies the checkpoint from which the archive can be folded, if the log's
// beginning was gone before it could be archived, and one for every few segments.
func (a *Archive) writeCheckpoints(ctx context.Context, src *Source, w *Written) error {
	metas, _, err := checkpoint.List(src.FS, src.Checkpoints)
	if err != nil || len(metas) == 0 || w.UpTo == 0 {
		return err
	}
	there, err := a.cards(checkpointFolder)
	if err != nil {
		return err
	}
	segments, err := a.cards(logFolder)
	if err != nil {
		return err
	}
	newest := uint64(0)
	for _, c := range there {
		newest = max(newest, c.HeadIndex)
	}
	for _, m := range slices.Backward(metas) { // oldest first
		if m.HeadIndex > w.UpTo || m.HeadIndex <= newest && len(there) > 0 {
			continue
		}
		between := 0
		for _, s := range segments {
			if s.Last > newest && s.Last <= m.HeadIndex {
				between++
			}
		}
		first := segments[0].PrevIndex
		needed := first > 0 && newest == 0 && m.HeadIndex >= first
		if !needed && between < checkpointStep {
			continue
		}
		size, err := a.putCheckpoint(ctx, src, &m)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, checkpoint.ErrCorrupt) {
			continue // deleted meanwhile, or damaged: another one serves
		}
		if err != nil {
			return err
		}
		w.Checkpoints++
		w.Bytes += size
		newest = m.HeadIndex
	}
	return nil
}

func (a *Archive) putCheckpoint(ctx context.Context, src *Source, m *checkpoint.Meta) (
	size int64, err error) {
	if _, err := checkpoint.Verify(src.FS, src.Checkpoints, m.Name()); err != nil {
		return 0, err
	}
	r, size, err := checkpoint.OpenRaw(src.FS, src.Checkpoints, m.Name())
	if err != nil {
		return 0, err
	}
	sum, err := a.put(ctx, path.Join(checkpointFolder, m.Name()), r)
	if err = errors.Join(err, r.Close()); err != nil {
		return 0, err
	}
	c := &card{Format: Format, Name: m.Name(), Bytes: size, SHA256: sum, HeadIndex: m.HeadIndex}
	return size, a.putJSON(ctx, path.Join(checkpointFolder, cardName(c.Name)), c)
}
