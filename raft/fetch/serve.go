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
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// What a node is asked for.
const (
	callManifest     = "fetch.manifest"
	streamSegment    = "fetch.segment"
	streamCheckpoint = "fetch.checkpoint"
)

// Codes of a *peer.Error.
const (
	codeInvalid = "invalid_argument"
	codeBusy    = "busy"          // enough streams are being served
	codeGone    = "gone"          // retention or thinning was faster: ask for a new manifest
	codeNone    = "no_checkpoint" // there is none as wanted
	codeFailed  = "failed"        // this node could not read its own files
)

type manifestRequest struct {
	Cluster  string `json:"cluster"`
	MinIndex uint64 `json:"min_index"`
	Asked    uint64 `json:"asked,omitempty"` // tell the chain behind this index
}

// fileRequest asks for the bytes of a file from an offset on: up to To, or of a
// checkpoint up to its end.
type fileRequest struct {
	Name string `json:"name"`
	From int64  `json:"from"`
	To   int64  `json:"to,omitempty"`
}

// Source is where a node serves from.
type Source struct {
	ClusterID string
	FS        vfs.FS
	DataDir   string
	// Log is the open event log in DataDir.
	Log *eventlog.Log
	// Snapshot, if set, writes a checkpoint of the state as it is, or tells why
	// it can't. It is asked where the newest one is not good enough.
	Snapshot func() error
	Logger   *slog.Logger // nil = silent
	// Streams bounds how many files are sent at a time, default 2: those who
	// fell behind must not slow down those who work.
	Streams int
	// BytesPerSecond bounds each stream; 0 = no bound.
	BytesPerSecond int64
}

// Handlers is the part of *peer.Net that Serve needs.
type Handlers interface {
	Handle(name string, h peer.Handler)
	HandleStream(name string, h peer.StreamHandler)
}

// Serve answers other nodes' fetches from src until stop is called, which waits
// for what is being sent to be broken off: after it nobody reads from src.
func Serve(n Handlers, src Source) (stop func()) {
	if src.Streams <= 0 {
		src.Streams = 2
	}
	if src.Logger == nil {
		src.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{Source: src, slots: make(chan struct{}, src.Streams), verified: map[string]int64{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	n.Handle(callManifest, s.manifest)
	n.HandleStream(streamSegment, s.segment)
	n.HandleStream(streamCheckpoint, s.checkpoint)
	return func() {
		n.Handle(callManifest, nil)
		n.HandleStream(streamSegment, nil)
		n.HandleStream(streamCheckpoint, nil)
		s.cancel()
		s.mu.Lock()
		s.stopped = true
		s.mu.Unlock()
		s.work.Wait()
	}
}

type server struct {
	Source
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}

	mu      sync.Mutex
	stopped bool           // guarded by mu; nothing is added to work any more
	work    sync.WaitGroup // handlers that run

	// making serialises manifests: one may read a whole checkpoint, or write one.
	making   sync.Mutex
	verified map[string]int64 // checkpoints found whole, with their creation; guarded by making
	told     struct {         // guarded by making
		name string
		upTo uint64
	}
}

// enter begins a handler's work: ctx ends with stop too.
func (s *server) enter(ctx context.Context) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, nil, fail(codeBusy, "this node is being closed")
	}
	s.work.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.work.Done()
	}, nil
}

func fail(code, format string, args ...any) error {
	return &peer.Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// manifest implements peer.Handler.
func (s *server) manifest(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var q manifestRequest
	if err := decode(body, &q, false); err != nil {
		return nil, fail(codeInvalid, "%v", err)
	}
	if q.Cluster != s.ClusterID {
		return nil, fail(codeInvalid, "this node is of cluster %q", s.ClusterID)
	}
	s.making.Lock()
	defer s.making.Unlock()
	m, err := s.find(ctx, q.MinIndex)
	if err != nil {
		if _, ok := errors.AsType[*peer.Error](err); !ok {
			s.Logger.Warn("no manifest could be made for another node", "node", from.Node, "error", err)
			err = fail(codeFailed, "%v", err)
		}
		return nil, err
	}
	if q.Asked > 0 {
		if chain, err := s.Log.ChainAt(q.Asked); err == nil {
			m.Asked = (*checkpoint.Chain)(&chain)
		}
	}
	return json.Marshal(m)
}

// find makes the manifest of the newest good checkpoint, writing one where that
// is needed and possible.
func (s *server) find(ctx context.Context, atLeast uint64) (*Manifest, error) {
	var last error
	for try := range 3 {
		m, err := s.newest(ctx, atLeast)
		if m != nil {
			return m, nil
		}
		last = err
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, errMoved) {
			continue // retention goes on under our feet: look again
		}
		if e, ok := errors.AsType[*peer.Error](err); !ok || e.Code != codeNone || s.Snapshot == nil || try > 0 {
			break
		}
		if err := s.Snapshot(); err != nil {
			return nil, fail(codeNone, "%v; a new checkpoint could not be written: %v", last, err)
		}
	}
	return nil, last
}

var errMoved = errors.New("a segment went away")

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
		if made, ok := s.verified[c.Name()]; !ok || made != c.CreatedAt {
			if _, err := checkpoint.Verify(s.FS, dir, c.Name()); err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					s.Logger.Error("a checkpoint cannot be used", "name", c.Name(), "error", err)
				}
				continue
			}
			clear(s.verified) // one is served at a time
			s.verified[c.Name()] = c.CreatedAt
		}
		m, err := s.manifestOf(c)
		if err != nil {
			return nil, err
		}
		ok, err := s.knowsDeletions(ctx, m)
		if err != nil {
			return nil, err
		}
		if ok {
			return m, nil
		}
		return nil, fail(codeNone, "history was let go of behind the newest checkpoint, of index %d", c.Index)
	}
	return nil, fail(codeNone, "no usable checkpoint at index %d or above", atLeast)
}

// manifestOf lists the log up to a checkpoint's head.
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
		segments := s.Log.Segments()
		i := slices.IndexFunc(segments, func(i log.SegmentInfo) bool { return i.Name == name })
		if i < 0 {
			return nil, errMoved
		}
		chain, err := s.Log.ChainAt(c.HeadIndex)
		if errors.Is(err, log.ErrDeleted) {
			return nil, errMoved
		} else if err != nil {
			return nil, err
		}
		for _, g := range segments[:i+1] {
			m.Segments = append(m.Segments, Segment{Name: g.Name, First: g.First, Last: g.Last, Size: g.Size, Chain: checkpoint.Chain(g.Chain)})
		}
		last := &m.Segments[i]
		last.Last, last.Size, last.Chain = c.HeadIndex, end, checkpoint.Chain(chain)
		m.PrevIndex, m.PrevChain = segments[0].PrevIndex, checkpoint.Chain(segments[0].PrevChain)
	}
	// A node whose log and checkpoint disagree must not spread that.
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// knowsDeletions tells whether the state in the manifest's checkpoint knows that
// what lies before the first segment may be gone. History is let go of by an
// event; a checkpoint from before that event still needs contents that were
// carried forward since, and a node with only this checkpoint would take the
// log's beginning for lost.
func (s *server) knowsDeletions(ctx context.Context, m *Manifest) (bool, error) {
	if m.PrevIndex == 0 {
		return true, nil
	}
	from := m.Checkpoint.HeadIndex
	if s.told.name == m.Checkpoint.Name {
		from = max(from, s.told.upTo)
	}
	next, done := s.Log.Blocks(from + 1)
	defer done()
	for {
		b, err := next(ctx)
		if err == io.EOF {
			break
		} else if err != nil {
			return false, err
		}
		for i := range b.Events {
			if b.Events[i].Type == event.HistoryDeleted {
				return false, nil
			}
		}
		from = b.Index
	}
	s.told.name, s.told.upTo = m.Checkpoint.Name, from
	return true, nil
}

// segment implements peer.StreamHandler.
func (s *server) segment(ctx context.Context, _ peer.Identity, body []byte, w io.Writer) error {
	return s.send(ctx, body, w, func(q *fileRequest) (vfs.File, error) {
		if _, ok := log.ParseSegmentName(q.Name); !ok {
			return nil, fail(codeInvalid, "%.64q is no segment", q.Name)
		}
		segments := s.Log.Segments()
		i := slices.IndexFunc(segments, func(i log.SegmentInfo) bool { return i.Name == q.Name })
		if i < 0 {
			return nil, fail(codeGone, "segment %s is not held", q.Name)
		}
		// Whole blocks only: behind them may be one that is being written.
		if q.To <= 0 || q.To > segments[i].Size {
			return nil, fail(codeInvalid, "segment %s has %d bytes, not %d", q.Name, segments[i].Size, q.To)
		}
		return s.FS.OpenRead(path.Join(s.DataDir, datadir.LogDir, q.Name))
	})
}

// checkpoint implements peer.StreamHandler.
func (s *server) checkpoint(ctx context.Context, _ peer.Identity, body []byte, w io.Writer) error {
	return s.send(ctx, body, w, func(q *fileRequest) (vfs.File, error) {
		if _, _, ok := checkpoint.ParseName(q.Name); !ok {
			return nil, fail(codeInvalid, "%.64q is no checkpoint", q.Name)
		}
		f, err := s.FS.OpenRead(path.Join(s.DataDir, datadir.CheckpointDir, q.Name))
		if err != nil {
			return nil, err
		}
		if q.To, err = f.Size(); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	})
}

// chunk is how much is read and sent at once.
const chunk = 256 << 10

// send sends the file that open finds for a request. The file stays readable
// when retention deletes it meanwhile.
func (s *server) send(ctx context.Context, body []byte, w io.Writer, open func(*fileRequest) (vfs.File, error)) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	var q fileRequest
	if err := decode(body, &q, false); err != nil {
		return fail(codeInvalid, "%v", err)
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return fail(codeBusy, "%d streams are being sent already", s.Streams)
	}
	f, err := open(&q)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(codeGone, "%s is not held", q.Name)
	} else if err != nil {
		return err
	}
	defer f.Close()
	if q.From < 0 || q.From > q.To {
		return fail(codeInvalid, "%s: offset %d is not in 0..%d", q.Name, q.From, q.To)
	}
	buf := make([]byte, min(chunk, q.To-q.From))
	for off := q.From; off < q.To; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buf[:min(int64(len(buf)), q.To-off)], off)
		if n == 0 {
			return fail(codeFailed, "%s: read at %d: %v", q.Name, off, err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		off += int64(n)
		if err := s.pause(ctx, int64(n)); err != nil {
			return err
		}
	}
	return nil
}

// pause waits as long as n bytes may take.
func (s *server) pause(ctx context.Context, n int64) error {
	if s.BytesPerSecond <= 0 {
		return nil
	}
	t := time.NewTimer(time.Duration(n * int64(time.Second) / s.BytesPerSecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
