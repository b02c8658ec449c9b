package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"slices"
	"sync"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

const (
	callList = "fetch.segments" // answered with the segments up to a checkpoint's head
	callRead = "fetch.read"     // answered with bytes of a segment or a checkpoint
)

type listRequest struct {
	HeadIndex uint64           `json:"head_index"`
	Chain     checkpoint.Chain `json:"chain"`
	Asked     uint64           `json:"asked,omitempty"` // the chain after this index is wanted too
}

type list struct {
	PrevIndex uint64            `json:"prev_index"`
	PrevChain checkpoint.Chain  `json:"prev_chain"`
	Segments  []Segment         `json:"segments"`
	Asked     *checkpoint.Chain `json:"asked,omitempty"` // nil where it is not held
}

type readRequest struct {
	File string `json:"file"` // log/NAME or checkpoints/NAME
	From int64  `json:"from"`
	Size int64  `json:"size"` // at most chunkBytes are sent
}

// Source is what a node serves from.
type Source struct {
	FS      vfs.FS
	DataDir string
	Log     *log.Log // the open event log in DataDir
	// Snapshot writes a checkpoint of the present state. It is called when the one that was
	// asked for is of no use any more.
	Snapshot func() error
	Logger   *slog.Logger
}

// Handlers is the part of *peer.Net that Serve needs.
type Handlers interface {
	Handle(name string, h peer.Handler)
}

// maxReads bounds how many reads are answered at a time: nodes that are behind must not slow
// down those that work.
const maxReads = 2

// Serve answers other nodes' fetches from src until stop is called: after it nobody reads from src.
func Serve(n Handlers, src Source) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{Source: src, ctx: ctx, slots: make(chan struct{}, maxReads)}
	n.Handle(callList, s.handler(peer.Answer(s.list)))
	n.Handle(callRead, s.handler(s.read))
	return func() {
		n.Handle(callList, nil)
		n.Handle(callRead, nil)
		cancel()
		s.running.Lock() // and never unlocked
	}
}

type server struct {
	Source
	ctx     context.Context // ends with stop
	slots   chan struct{}
	running sync.RWMutex // held for reading by handlers
}

var errClosing = errors.New("this node is being closed")

// handler makes h, which ends when the server is stopped, a peer.Handler.
func (s *server) handler(h peer.Handler) peer.Handler {
	return func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if !s.running.TryRLock() {
			return nil, errClosing
		}
		defer s.running.RUnlock()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		return h(ctx, from, body)
	}
}

func (s *server) list(ctx context.Context, from peer.Identity, q listRequest) (*list, error) {
	l, err := s.segments(ctx, q)
	if errors.Is(err, errUseless) {
		// The next offer is of a newer one.
		err = errors.Join(err, s.Snapshot())
	}
	if err != nil {
		s.Logger.Warn("no segments for another node", "node", from.Node, "error", err)
	}
	return l, err
}

var errUseless = errors.New("history after the checkpoint was deleted")

// segments lists the log up to a checkpoint's head. Retention may continue meanwhile: then
// the other node asks again.
func (s *server) segments(ctx context.Context, q listRequest) (*list, error) {
	chain, err := s.Log.ChainAt(q.HeadIndex)
	if errors.Is(err, log.ErrGone) {
		return nil, errUseless
	} else if err != nil {
		return nil, err
	}
	if chain != q.Chain {
		// A node whose log differs must not spread that.
		return nil, fmt.Errorf("this node's chain at index %d is %x", q.HeadIndex, chain)
	}
	name, end, err := s.Log.Extent(q.HeadIndex)
	if errors.Is(err, log.ErrNotFound) {
		return nil, errUseless
	} else if err != nil {
		return nil, err
	}
	segments := s.Log.Segments()
	i := slices.IndexFunc(segments, func(g log.SegmentInfo) bool { return g.Name == name })
	if i < 0 {
		return nil, errUseless
	}
	l := &list{PrevIndex: segments[0].PrevIndex, PrevChain: segments[0].PrevChain}
	for _, g := range segments[:i+1] {
		l.Segments = append(l.Segments, Segment{
			Name: g.Name, First: g.First, Last: g.Last, Size: g.Size, Chain: g.Chain,
		})
	}
	last := &l.Segments[i]
	last.Last, last.Size, last.Chain = q.HeadIndex, end, chain
	if q.Asked > 0 {
		if chain, err := s.Log.ChainAt(q.Asked); err == nil {
			l.Asked = (*checkpoint.Chain)(&chain)
		}
	}
	if l.PrevIndex == 0 {
		return l, nil
	}
	return l, s.checkDeletions(ctx, q.HeadIndex)
}

// checkDeletions returns errUseless if history was deleted after a checkpoint. Its state then
// still needs contents that were carried forward since, and a node with only this checkpoint
// would take the log's beginning for lost.
func (s *server) checkDeletions(ctx context.Context, head uint64) error {
	for e, err := range s.Log.Events(ctx, head+1, math.MaxUint64) {
		if err != nil {
			return err
		}
		if e.Type == event.HistoryDeleted {
			return errUseless
		}
	}
	return nil
}

// read answers with the bytes of a file from an offset on, as many as one call carries.
func (s *server) read(ctx context.Context, _ peer.Identity, body []byte) ([]byte, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var q readRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	f, size, err := s.open(path.Split(q.File))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if q.From < 0 || q.Size <= 0 || q.Size > size-q.From {
		return nil, fmt.Errorf("%s has %d bytes, not %d from %d on", q.File, size, q.Size, q.From)
	}
	b := make([]byte, min(q.Size, chunkBytes))
	_, err = io.ReadFull(io.NewSectionReader(f, q.From, q.Size), b)
	return b, err
}

// open opens a file and returns how much of it may be sent: whole blocks of a segment only,
// because one may be being written after them.
func (s *server) open(dir, name string) (f vfs.File, size int64, err error) {
	segments := s.Log.Segments()
	i := slices.IndexFunc(segments, func(g log.SegmentInfo) bool { return g.Name == name })
	isSegment := dir == datadir.LogDir+"/" && i >= 0
	_, _, isCheckpoint := checkpoint.ParseName(name)
	if !isSegment && (!isCheckpoint || dir != datadir.CheckpointDir+"/") {
		return nil, 0, fs.ErrNotExist
	}
	if f, err = s.FS.OpenRead(path.Join(s.DataDir, dir, name)); err != nil {
		return nil, 0, err
	}
	if isSegment {
		return f, segments[i].Size, nil
	}
	if size, err = f.Size(); err != nil {
		f.Close()
	}
	return f, size, err
}
