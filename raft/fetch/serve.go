package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

const callManifest = "fetch.manifest"

// Codes of a *peer.Error.
const (
	codeInvalid = "invalid_argument"
	codeBusy    = "busy"          // this node is being closed
	codeNone    = "no_checkpoint" // there is none as wanted
	codeFailed  = "failed"        // this node could not read its own files
)

type manifestRequest struct {
	Cluster  string `json:"cluster"`
	MinIndex uint64 `json:"min_index"`
	Asked    uint64 `json:"asked,omitempty"` // wanted is also the chain behind this index
}

// Source is where a node serves from.
type Source struct {
	ClusterID string
	FS        vfs.FS
	DataDir   string
	// Log is the open event log in DataDir.
	Log *log.Log
	// Snapshot writes a checkpoint of the present state, or says why it can't. It
	// is asked where the newest one is not good enough.
	Snapshot func() error
	Logger   *slog.Logger // nil = silent
}

// Handlers is the part of *peer.Net that Serve needs.
type Handlers interface {
	Handle(name string, h peer.Handler)
	HandleFiles(h http.Handler)
}

// maxStreams bounds how many files are sent at a time: nodes that fell behind must
// not slow down those that work.
const maxStreams = 2

// Serve answers other nodes' fetches from src until stop is called, which breaks
// off what is being sent: after it nobody reads from src.
func Serve(n Handlers, src Source) (stop func()) {
	if src.Logger == nil {
		src.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{Source: src, slots: make(chan struct{}, maxStreams)}
	ctx, cancel := context.WithCancel(context.Background())
	s.ctx = ctx
	n.Handle(callManifest, s.manifest)
	n.HandleFiles(s)
	return func() {
		n.Handle(callManifest, nil)
		n.HandleFiles(nil)
		cancel()
		s.running.Lock() // and never unlocked
	}
}

type server struct {
	Source
	ctx     context.Context // ends with stop
	slots   chan struct{}
	running sync.RWMutex // held for reading by handlers
	making  sync.Mutex   // one manifest at a time: it reads a whole checkpoint, or writes one
}

func fail(code, format string, args ...any) error {
	return &peer.Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// manifest implements peer.Handler.
func (s *server) manifest(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	if !s.running.TryRLock() {
		return nil, fail(codeBusy, "this node is being closed")
	}
	defer s.running.RUnlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var q manifestRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fail(codeInvalid, "%v", err)
	}
	if q.Cluster != s.ClusterID {
		return nil, fail(codeInvalid, "this node is of cluster %q", s.ClusterID)
	}
	s.making.Lock()
	defer s.making.Unlock()
	m, err := s.newest(ctx, q.MinIndex)
	if e, ok := errors.AsType[*peer.Error](err); ok && e.Code == codeNone {
		if serr := s.Snapshot(); serr != nil {
			return nil, fail(codeNone, "%s; a new checkpoint could not be written: %v", e.Detail, serr)
		}
		m, err = s.newest(ctx, q.MinIndex)
	}
	if err != nil {
		if _, ok := errors.AsType[*peer.Error](err); !ok {
			s.Logger.Warn("no manifest for another node", "node", from.Node, "error", err)
			err = fail(codeFailed, "%v", err)
		}
		return nil, err
	}
	if q.Asked > 0 {
		if chain, err := s.Log.ChainAt(q.Asked); err == nil {
			m.Asked = (*checkpoint.Chain)(&chain)
		}
	}
	return encode(m), nil
}

// newest makes the manifest of the newest good checkpoint.
func (s *server) newest(ctx context.Context, atLeast uint64) (*Manifest, error) {
	dir := path.Join(s.DataDir, datadir.CheckpointDir)
	metas, _, err := checkpoint.List(s.FS, dir)
	if err != nil {
		return nil, err
	}
	head := s.Log.Head()
	for i := range metas {
		c := &metas[i]
		if c.Index < atLeast {
			break // the others are older
		}
		// Raft takes no snapshot without a term or without members; the other
		// two are not of this log.
		if c.Term == 0 || len(c.Configuration) == 0 || c.ClusterID != s.ClusterID || c.HeadIndex > head {
			continue
		}
		if _, err := checkpoint.Verify(s.FS, dir, c.Name()); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.Logger.Error("unusable checkpoint", "name", c.Name(), "error", err)
			}
			continue
		}
		m, err := s.manifestOf(c)
		if err != nil {
			return nil, err
		}
		ok, err := s.knowsDeletions(ctx, m)
		if err == nil && !ok {
			err = fail(codeNone, "history behind the newest checkpoint, of index %d, was deleted", c.Index)
		}
		return m, err
	}
	return nil, fail(codeNone, "no usable checkpoint at index %d or above", atLeast)
}

// manifestOf lists the log up to a checkpoint's head. An error may also be that
// retention goes on meanwhile; the other node asks again.
func (s *server) manifestOf(c *checkpoint.Meta) (*Manifest, error) {
	m := &Manifest{Cluster: s.ClusterID, Checkpoint: Checkpoint{
		Name: c.Name(), Size: c.Size, Index: c.Index, Term: c.Term, HeadIndex: c.HeadIndex, Chain: checkpoint.Chain(c.Chain),
	}}
	if c.HeadIndex > 0 {
		name, end, err := s.Log.Extent(c.HeadIndex)
		if errors.Is(err, log.ErrNotFound) {
			return nil, fail(codeNone, "the event log begins behind checkpoint %s", m.Checkpoint.Name)
		} else if err != nil {
			return nil, err
		}
		chain, err := s.Log.ChainAt(c.HeadIndex)
		if err != nil {
			return nil, err
		}
		segments := s.Log.Segments()
		i := slices.IndexFunc(segments, func(i log.SegmentInfo) bool { return i.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("segment %s was deleted", name)
		}
		for _, g := range segments[:i+1] {
			m.Segments = append(m.Segments, Segment{Name: g.Name, First: g.First, Last: g.Last, Size: g.Size, Chain: checkpoint.Chain(g.Chain)})
		}
		last := &m.Segments[i]
		last.Last, last.Size, last.Chain = c.HeadIndex, end, checkpoint.Chain(chain)
		m.PrevIndex, m.PrevChain = segments[0].PrevIndex, checkpoint.Chain(segments[0].PrevChain)
	}
	// A node whose log and checkpoint disagree must not spread that.
	return m, m.check()
}

// knowsDeletions reports whether the state in the manifest's checkpoint knows that
// what lies before the first segment may be gone. History is deleted by an event;
// a checkpoint from before that event still needs contents that were carried
// forward since, and a node with only this checkpoint would take the log's
// beginning for lost.
func (s *server) knowsDeletions(ctx context.Context, m *Manifest) (bool, error) {
	if m.PrevIndex == 0 {
		return true, nil
	}
	next := s.Log.Blocks(m.Checkpoint.HeadIndex + 1)
	for {
		b, err := next(ctx)
		if err == io.EOF {
			return true, nil
		} else if err != nil {
			return false, err
		}
		for i := range b.Events {
			if b.Events[i].Type == event.HistoryDeleted {
				return false, nil
			}
		}
	}
}

// ServeHTTP sends a segment (/log/NAME) or a checkpoint (/checkpoints/NAME), or
// the range of it that was asked for. The file stays readable when retention
// deletes it meanwhile.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.running.TryRLock() {
		http.Error(w, "this node is being closed", http.StatusServiceUnavailable)
		return
	}
	defer s.running.RUnlock()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		http.Error(w, fmt.Sprintf("%d files are being sent already", maxStreams), http.StatusServiceUnavailable)
		return
	}
	f, size, err := s.open(path.Split(r.URL.Path))
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, "not held", http.StatusGone)
		return
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	// Where the other node reads slowly, or not at all, stop ends the write.
	defer context.AfterFunc(s.ctx, func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) })()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(f, 0, size))
}

// open opens a file and returns how much of it may be sent: of a segment whole
// blocks only, behind which may be one that is being written.
func (s *server) open(dir, name string) (vfs.File, int64, error) {
	_, _, isCheckpoint := checkpoint.ParseName(name)
	switch {
	case dir == "/"+datadir.LogDir+"/":
		segments := s.Log.Segments()
		i := slices.IndexFunc(segments, func(i log.SegmentInfo) bool { return i.Name == name })
		if i < 0 {
			return nil, 0, fs.ErrNotExist
		}
		f, err := s.FS.OpenRead(path.Join(s.DataDir, datadir.LogDir, name))
		return f, segments[i].Size, err
	case dir == "/"+datadir.CheckpointDir+"/" && isCheckpoint:
		f, err := s.FS.OpenRead(path.Join(s.DataDir, datadir.CheckpointDir, name))
		if err != nil {
			return nil, 0, err
		}
		size, err := f.Size()
		if err != nil {
			f.Close()
		}
		return f, size, err
	}
	return nil, 0, fs.ErrNotExist
}
