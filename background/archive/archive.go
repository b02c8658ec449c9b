// Package archive keeps the sealed segments of an event log, and some checkpoints, in a directory:
// retention may then delete them from the data directories, and replay reads them from here.
//
//	archive.json             the cluster it is of
//	log/<first index>.seg    a segment, as in a data directory, and .idx, its side file
//	checkpoints/<name>.ckpt  a checkpoint
//
// A file is written under another name, synced, read back, compared and renamed, so each is whole.
// Two writers do no harm: all nodes' segments are the same, except for erased contents.
package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
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
	"github.com/qlogd/qlogd/log/datadir"
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

// Archive is an archive that was opened. Its methods may be called from any goroutine.
type Archive struct {
	fs    vfs.FS
	dir   string
	about about
}

var (
	// ErrNone is returned if there is no archive yet.
	ErrNone = errors.New("no archive found")
	// ErrOther is returned for an archive of another cluster or of another history of it.
	ErrOther = errors.New("archive belongs to another cluster or history")
)

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
	b, err := vfs.ReadFile(fsys, path.Join(dir, aboutName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s", ErrNone, dir)
	}
	if err == nil {
		err = json.Unmarshal(b, &a.about)
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %s: %w", dir, aboutName, err)
	}
	if a.about.Format > Format {
		return nil, fmt.Errorf("archive %s: %s has format %d, this binary supports up to %d",
			dir, aboutName, a.about.Format, Format)
	}
	return a, nil
}

// OpenFor opens a cluster's archive, and creates it if there is none.
func OpenFor(fsys vfs.FS, dir, clusterID string, segmentBytes int64) (*Archive, error) {
	a, err := Open(fsys, dir)
	if errors.Is(err, ErrNone) {
		node := path.Join(dir, datadir.NodeFile)
		if _, err := vfs.ReadFile(fsys, node); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("archive: %s is a node's data directory (it has %s)",
				dir, datadir.NodeFile)
		}
		a = &Archive{fs: fsys, dir: dir, about: about{Format, clusterID, segmentBytes}}
		b, _ := json.Marshal(&a.about) // never fails
		if err = a.put(aboutName, bytes.NewReader(b)); err == nil {
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

// folder returns a folder of the archive.
func (a *Archive) folder(name string) string { return path.Join(a.dir, name) }

// Segments returns the archived segments, oldest first.
func (a *Archive) Segments() (out []log.SegmentInfo, err error) {
	names, err := vfs.List(a.fs, a.folder(logFolder))
	for _, name := range names {
		first, ok := log.ParseSegmentName(name)
		if !ok {
			continue
		}
		s, err := log.SealedSegment(a.fs, a.folder(logFolder), first)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, err
}

// tempMark is in the names of files that are not finished.
const tempMark = ".tmp-"

// put writes a file durably, and reads it back before it gets its name: until then, readers see the
// file that was there before, or none. Unfinished files of earlier runs are removed; if another
// writer is writing one, its put fails and is retried.
func (a *Archive) put(name string, r io.Reader) error {
	target := path.Join(a.dir, name)
	dir := path.Dir(target)
	if err := a.fs.MkdirAll(dir); err != nil {
		return err
	}
	if err := a.removeUnfinished(dir, path.Base(name)); err != nil {
		return err
	}
	temp, written := target+tempMark+rand.Text(), sha256.New()
	var size int64
	err := vfs.Write(a.fs, temp, func(w io.Writer) (err error) {
		size, err = io.Copy(io.MultiWriter(w, written), r)
		return err
	})
	if err != nil {
		return err
	}
	back, err := sumOf(a.fs, temp, size)
	if err == nil && back != [sha256.Size]byte(written.Sum(nil)) {
		err = fmt.Errorf("archive %s: %s has another SHA-256 when it is read back", a.dir, name)
	}
	if err != nil {
		return errors.Join(err, a.fs.Remove(temp))
	}
	if err := a.fs.Rename(temp, target); err != nil {
		return err
	}
	return a.fs.SyncDir(dir)
}

// removeUnfinished removes the unfinished files for this name, "" for any, in a directory.
func (a *Archive) removeUnfinished(dir, name string) error {
	names, err := vfs.List(a.fs, dir)
	if err != nil {
		return err
	}
	return vfs.Remove(a.fs, dir, slices.DeleteFunc(names, func(old string) bool {
		target, _, unfinished := strings.Cut(old, tempMark)
		return !unfinished || name != "" && target != name
	})...)
}

// sumOf returns the SHA-256 of the first n bytes of a file.
func sumOf(fsys vfs.FS, name string, n int64) (sum [sha256.Size]byte, err error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	_, err = io.Copy(h, io.NewSectionReader(f, 0, n))
	return [sha256.Size]byte(h.Sum(nil)), errors.Join(err, f.Close())
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
	Segments    int   `json:"segments"`    // new ones
	Refreshed   int   `json:"refreshed"`   // written again: contents were erased
	Checkpoints int   `json:"checkpoints"` // new ones
	Bytes       int64 `json:"bytes"`       // of all these
	// UpTo: every sealed segment up to this index is in the archive; 0 none.
	UpTo uint64 `json:"up_to_index"`
}

// Write copies the sealed segments of a log that the archive lacks, oldest first. If it fails or is
// stopped, the next run continues. Every byte of a segment is checked before it is written, and
// read back afterwards. progress, if not nil, is called with the bytes of segments done and in all.
func (a *Archive) Write(ctx context.Context, src Source, progress func(done, total int64)) (
	w Written, err error) {
	there, err := a.Segments()
	if err != nil {
		return w, err
	}
	open := func(s log.SegmentInfo) bool { return !s.Sealed }
	sealed := slices.DeleteFunc(slices.Clone(src.Segments), open)
	var done, total int64
	for _, s := range sealed {
		total += s.Size
	}
	for i := range sealed {
		s := &sealed[i]
		at, archived := slices.BinarySearchFunc(there, s.First,
			func(s log.SegmentInfo, first uint64) int { return cmp.Compare(s.First, first) })
		fresh, written := !archived, &w.Segments
		switch {
		case archived && (there[at].Chain != s.Chain || there[at].Last != s.Last):
			return w, fmt.Errorf("%w: its segment %s ends at index %d with chain %x…, "+
				"the log's at index %d with chain %x…", ErrOther,
				s.Name, there[at].Last, there[at].Chain[:8], s.Last, s.Chain[:8])
		case archived && src.RefreshErased:
			written = &w.Refreshed
			if fresh, err = a.differs(&src, s); err != nil {
				return w, err
			}
		case !archived && at > 0 && there[at-1].Last == s.PrevIndex &&
			there[at-1].Chain != s.PrevChain:
			return w, fmt.Errorf("%w: segment %s does not continue the archive's %s",
				ErrOther, s.Name, there[at-1].Name)
		}
		if fresh {
			if err := a.putSegment(ctx, &src, s); err != nil {
				return w, err
			}
			*written++
			w.Bytes += s.Size
		}
		if !archived {
			there = slices.Insert(there, at, *s)
		}
		w.UpTo = s.Last
		if done += s.Size; progress != nil {
			progress(done, total)
		}
	}
	return w, a.writeCheckpoints(&src, &w, there)
}

// differs reports whether an archived segment differs from the log's: two segments with the same
// chain differ if contents were erased in one.
func (a *Archive) differs(src *Source, s *log.SegmentInfo) (bool, error) {
	mine, err := sumOf(src.FS, path.Join(src.LogDir, s.Name), s.Size)
	if err != nil {
		return false, err
	}
	archived, err := sumOf(a.fs, path.Join(a.folder(logFolder), s.Name), s.Size)
	return mine != archived, err
}

// putSegment checks a segment and writes it.
func (a *Archive) putSegment(ctx context.Context, src *Source, s *log.SegmentInfo) error {
	// Every byte, now: damage must not be archived.
	scanned, err := log.ScanSegment(ctx, src.FS, src.LogDir, s.Name, s.Size, nil)
	if err != nil {
		return err
	}
	if scanned.Chain != s.Chain || scanned.Last != s.Last || scanned.PrevChain != s.PrevChain {
		return fmt.Errorf("archive segment %s: its file differs from the log's index", s.Name)
	}
	// The side file first: a segment without it is read whole each time.
	err = a.put(path.Join(logFolder, s.SideFile), bytes.NewReader(scanned.Side))
	if err != nil {
		return err
	}
	name := path.Join(src.LogDir, s.Name)
	return a.putFile(path.Join(logFolder, s.Name), src.FS, name, s.Size)
}

// Erase removes erased contents from the archive, and returns the number of segments that it wrote.
func (a *Archive) Erase(ctx context.Context, erased []event.Ref) (n int, err error) {
	// A crash leaves copies of segments that are not in the archive yet.
	if err := a.removeUnfinished(a.folder(logFolder), ""); err != nil {
		return 0, err
	}
	there, err := a.Segments()
	if err != nil {
		return 0, err
	}
	for i := range there {
		s := &there[i]
		refs := slices.DeleteFunc(slices.Clone(erased), func(r event.Ref) bool {
			return r.Index < s.First || r.Index > s.Last
		})
		if len(refs) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		b, found, err := log.EraseSegment(a.fs, a.folder(logFolder), *s, refs)
		if err != nil {
			return n, err
		}
		if !found {
			continue
		}
		// Its side file stays: the chain does not cover contents.
		if err := a.put(path.Join(logFolder, s.Name), bytes.NewReader(b)); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// checkpointStep is the number of segments per archived checkpoint, so that every instant has a
// nearby state.
const checkpointStep = 8

// writeCheckpoints copies the checkpoint that the archive must be folded from, if the log's
// beginning was deleted before it could be archived, and one for every checkpointStep segments.
func (a *Archive) writeCheckpoints(src *Source, w *Written, segments []log.SegmentInfo) error {
	metas, _, err := checkpoint.List(src.FS, src.Checkpoints)
	if err != nil || len(metas) == 0 || w.UpTo == 0 {
		return err
	}
	there, _, err := checkpoint.List(a.fs, a.folder(checkpointFolder))
	if err != nil {
		return err
	}
	newest := uint64(0)
	if len(there) > 0 {
		newest = there[0].HeadIndex
	}
	start := segments[0].PrevIndex             // the archive begins behind it
	for _, m := range slices.Backward(metas) { // oldest first
		if m.HeadIndex > w.UpTo || m.HeadIndex <= newest {
			continue
		}
		between := 0
		for _, s := range segments {
			if s.Last > newest && s.Last <= m.HeadIndex {
				between++
			}
		}
		needed := start > 0 && newest == 0 && m.HeadIndex >= start
		if !needed && between < checkpointStep {
			continue
		}
		meta, err := checkpoint.Verify(src.FS, src.Checkpoints, m.Name())
		if err == nil {
			from := path.Join(src.Checkpoints, m.Name())
			err = a.putFile(path.Join(checkpointFolder, m.Name()), src.FS, from, meta.Size)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*checkpoint.CorruptError)) {
			continue // deleted meanwhile, or damaged: another one serves
		}
		if err != nil {
			return err
		}
		w.Checkpoints++
		w.Bytes += meta.Size
		newest = m.HeadIndex
	}
	return nil
}

// putFile puts the first size bytes of another file.
func (a *Archive) putFile(name string, fsys vfs.FS, from string, size int64) error {
	f, err := fsys.OpenRead(from)
	if err != nil {
		return err
	}
	return errors.Join(a.put(name, io.NewSectionReader(f, 0, size)), f.Close())
}
