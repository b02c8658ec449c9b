// Package archive keeps the sealed segments of an event log, and some
// checkpoints, in a directory for as long as anybody wants: retention may then
// delete them from the data directories, and replay reads them from here.
//
// An archive is a set of objects:
//
//	archive.json                          which cluster's it is
//	log/<first index>.json                a card: one sealed segment is there, whole
//	log/<first index>-<hash>.seg, .idx    its bytes, named by what they are
//	checkpoints/<name>.json               a card: one checkpoint is there, whole
//	checkpoints/<name>-<hash>.ckpt        its bytes
//
// A segment's bytes are written first, read back and compared with their
// SHA-256; only then its card is written, at once. So what has a card is whole,
// and what has none is not there: a crash in between leaves bytes that the next
// run finds, checks and takes, and no reader ever sees. Two writers do no harm:
// all nodes' segments are the same, but for erased contents.
package archive

import (
	"bytes"
	"cmp"
	"context"
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
	"sync"

	"github.com/qlogd/qlogd/log"
)

// Store keeps objects by name. Names have the parts log/ and checkpoints/ at
// most.
type Store interface {
	// Put writes an object. Until it is whole, readers see the object that was
	// there before, or none. When it returns nil the object is durable.
	Put(ctx context.Context, name string, r io.Reader, size int64) error
	// Get reads an object from an offset, n bytes of it or, for n < 0, to its
	// end. fs.ErrNotExist where there is none.
	Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error)
	// List returns the objects whose names begin with prefix, by name.
	List(ctx context.Context, prefix string) ([]Object, error)
	// Delete removes an object; that there is none is no error.
	Delete(ctx context.Context, name string) error
	// Local returns the name of the file that holds an object.
	Local(name string) string
	// String names the store as its user did, without secrets.
	String() string
}

// Object is what List tells of one.
type Object struct {
	Name string
	Size int64
}

// Format is the newest version of an archive that this program knows, and the
// one that it makes.
const Format = 1

const aboutName = "archive.json"

// about is archive.json.
type about struct {
	Format       int    `json:"format"`
	ClusterID    string `json:"cluster_id"`
	SegmentBytes int64  `json:"segment_bytes"`
}

// bytesOf says which object holds some bytes, and what they are.
type bytesOf struct {
	Object string `json:"object"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// card says that a segment is there, or a checkpoint.
type card struct {
	Format int    `json:"format"`
	Name   string `json:"name"` // of the file in a data directory
	bytesOf
	// Of a segment.
	First     uint64   `json:"first_index,omitempty"`
	Last      uint64   `json:"last_index,omitempty"`
	PrevIndex uint64   `json:"previous_index,omitempty"`
	PrevChain string   `json:"previous_chain_hash,omitempty"`
	Chain     string   `json:"chain_hash,omitempty"`
	ClockMS   int64    `json:"clock_ms,omitempty"`
	Erased    int64    `json:"erased,omitempty"` // contents that were erased when it was written
	Side      *bytesOf `json:"side_file,omitempty"`
	// Of a checkpoint.
	HeadIndex uint64 `json:"head_index,omitempty"`
}

// Archive is an archive that was opened. Its methods may be called from any
// goroutine.
type Archive struct {
	store Store
	about about

	mu    sync.Mutex
	cards map[string]*card // by object name; a card that was read is not read again
}

// Errors of archives that are not what is wanted.
var (
	// ErrNone is returned where there is no archive yet.
	ErrNone = errors.New("there is no archive")
	// ErrOther is returned for an archive of another cluster or of another
	// history of it.
	ErrOther = errors.New("the archive is of another history")
)

// CorruptError names an object that is not what its card says.
type CorruptError struct {
	Store, Object, Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("archive %s: object %s: %s", e.Store, e.Object, e.Reason)
}

// Open opens an archive that exists.
func Open(ctx context.Context, store Store) (*Archive, error) {
	a := &Archive{store: store, cards: map[string]*card{}}
	b, err := a.readAll(ctx, aboutName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s", ErrNone, store)
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", store, err)
	}
	if err := json.Unmarshal(b, &a.about); err != nil {
		return nil, &CorruptError{store.String(), aboutName, err.Error()}
	}
	if err := a.known(aboutName, a.about.Format); err != nil {
		return nil, err
	}
	return a, nil
}

// OpenFor opens a cluster's archive, and makes it where there is none.
func OpenFor(ctx context.Context, store Store, clusterID string, segmentBytes int64) (*Archive, error) {
	a, err := Open(ctx, store)
	if errors.Is(err, ErrNone) {
		b, merr := json.Marshal(about{Format: Format, ClusterID: clusterID, SegmentBytes: segmentBytes})
		if merr != nil {
			return nil, merr
		}
		if err := store.Put(ctx, aboutName, bytes.NewReader(b), int64(len(b))); err != nil {
			return nil, fmt.Errorf("archive %s: %w", store, err)
		}
		a, err = Open(ctx, store)
	}
	if err != nil {
		return nil, err
	}
	if a.about.ClusterID != clusterID {
		return nil, fmt.Errorf("%w: %s is of cluster %s, not %s", ErrOther, store, a.about.ClusterID, clusterID)
	}
	return a, nil
}

// ClusterID returns whose archive it is.
func (a *Archive) ClusterID() string { return a.about.ClusterID }

func (a *Archive) String() string { return a.store.String() }

func (a *Archive) known(name string, format int) error {
	if format > Format {
		return fmt.Errorf("archive %s: %s has format %d, this program knows %d: run a newer one", a.store, name, format, Format)
	}
	return nil
}

func (a *Archive) readAll(ctx context.Context, name string) ([]byte, error) {
	r, err := a.store.Get(ctx, name, 0, -1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// reading bounds how many cards are read at once.
const reading = 16

// list returns the cards in a folder, by name.
func (a *Archive) list(ctx context.Context, folder string) ([]*card, error) {
	objects, err := a.store.List(ctx, folder+"/")
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", a.store, err)
	}
	var names []string
	for _, o := range objects {
		if strings.HasSuffix(o.Name, ".json") {
			names = append(names, o.Name)
		}
	}
	out := make([]*card, len(names))
	errs := make([]error, len(names))
	var work sync.WaitGroup
	room := make(chan struct{}, reading)
	for i, name := range names {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			out[i], errs[i] = a.card(ctx, name)
		})
	}
	work.Wait()
	return slices.DeleteFunc(out, func(c *card) bool { return c == nil }), errors.Join(errs...)
}

// card reads a card; nil where it went away meanwhile.
func (a *Archive) card(ctx context.Context, name string) (*card, error) {
	a.mu.Lock()
	c := a.cards[name]
	a.mu.Unlock()
	if c != nil {
		return c, nil
	}
	b, err := a.readAll(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", a.store, err)
	}
	c = &card{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, &CorruptError{a.store.String(), name, err.Error()}
	}
	if err := a.known(name, c.Format); err != nil {
		return nil, err
	}
	// A card only names what lies beside it.
	if cardName(path.Dir(name), c.Name) != name || path.Dir(c.Object) != path.Dir(name) || c.Side != nil && path.Dir(c.Side.Object) != path.Dir(name) {
		return nil, &CorruptError{a.store.String(), name, "the card is that of " + c.Name}
	}
	a.mu.Lock()
	a.cards[name] = c
	a.mu.Unlock()
	return c, nil
}

// segments returns the cards of all segments, by first index.
func (a *Archive) segments(ctx context.Context) ([]*card, error) {
	cards, err := a.list(ctx, logFolder)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(cards, func(x, y *card) int { return cmp.Compare(x.First, y.First) })
	return cards, nil
}

// Segments tells of the segments that are there, oldest first.
func (a *Archive) Segments(ctx context.Context) ([]log.SegmentInfo, error) {
	cards, err := a.segments(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]log.SegmentInfo, len(cards))
	for i, c := range cards {
		out[i] = log.SegmentInfo{
			Name: c.Name, SideFile: log.SideFileName(c.First), First: c.First, Last: c.Last, Size: c.Bytes,
			PrevIndex: c.PrevIndex, PrevChain: unhex(c.PrevChain), Chain: unhex(c.Chain), Clock: c.ClockMS, Sealed: true,
		}
	}
	return out, nil
}

const (
	logFolder        = "log"
	checkpointFolder = "checkpoints"
)

// cardName is the object that says that a file is there.
func cardName(folder, file string) string {
	return folder + "/" + strings.TrimSuffix(file, path.Ext(file)) + ".json"
}

// objectName is the object that holds a file's bytes. It is named by what they
// are, so that another version (contents were erased) never takes the place of
// one that a card still names.
func objectName(folder, file, sum string) string {
	ext := path.Ext(file)
	return folder + "/" + strings.TrimSuffix(file, ext) + "-" + sum[:16] + ext
}

func hexOf(chain [32]byte) string { return hex.EncodeToString(chain[:]) }

func unhex(s string) (chain [32]byte) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(chain) {
		copy(chain[:], b)
	}
	return chain
}

// sum returns the SHA-256 of what r has, and how much it is.
func sum(r io.Reader) (string, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), n, err
}
