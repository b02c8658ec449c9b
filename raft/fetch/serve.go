package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"

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
	HeadIndex uint64      `json:"head_index"`
	Chain     event.Chain `json:"chain"`
	Asked     uint64      `json:"asked,omitempty"` // the chain after this index is wanted too
}

type list struct {
	extent
	Asked event.Chain `json:"asked,omitzero"` // zero where it is not held
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

// maxCalls bounds how many calls are answered at a time: nodes that are behind must not slow
// down those that work.
const maxCalls = 2

// Serve answers other nodes' fetches from src, by handle of a peer.Net, until stop is called:
// after it nobody reads from src.
func Serve(
	handle func(ctx context.Context, name string, h peer.Handler), src Source,
) (stop func()) {
	stopped, cancel := context.WithCancel(context.Background())
	slots := make(chan struct{}, maxCalls)
	bounded := func(h peer.Handler) peer.Handler {
		return func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(stopped, cancel)()
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				return h(ctx, from, body)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	handle(stopped, callList, bounded(peer.Answer(src.list)))
	handle(stopped, callRead, bounded(src.read))
	return func() {
		cancel()
		for range maxCalls {
			slots <- struct{}{} // waits for a call, and lets no other in
		}
	}
}

func (s *Source) list(ctx context.Context, from peer.Identity, q listRequest) (*list, error) {
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
func (s *Source) segments(ctx context.Context, q listRequest) (*list, error) {
	segments, err := s.Log.SegmentsTo(q.HeadIndex)
	switch {
	case errors.Is(err, log.ErrNotFound), errors.Is(err, log.ErrGone):
		return nil, errUseless
	case err != nil:
		return nil, err
	}
	l := &list{extent: extent{segments[0].PrevIndex, segments[0].PrevChain, segments}}
	// A node whose log differs must not spread that.
	if last := segments[len(segments)-1]; last.Last != q.HeadIndex || last.Chain != q.Chain {
		return nil, fmt.Errorf("this node's chain at index %d is %s", last.Last, last.Chain)
	}
	if chain, err := s.Log.ChainAt(q.Asked); err == nil {
		l.Asked = chain
	}
	if l.PrevIndex == 0 {
		return l, nil
	}
	// If history was deleted after a checkpoint, its state still needs contents that were carried
	// forward since, and a node with only this checkpoint would take the log's beginning for lost.
	for e, err := range s.Log.Events(ctx, q.HeadIndex+1, math.MaxUint64) {
		if err != nil {
			return nil, err
		}
		if e.Type == event.HistoryDeleted {
			return nil, errUseless
		}
	}
	return l, nil
}

// read answers with the bytes of a file from an offset on, as many as one call carries.
func (s *Source) read(_ context.Context, _ peer.Identity, body []byte) ([]byte, error) {
	var q readRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	size, err := s.size(q.File)
	if err != nil {
		return nil, err
	}
	if q.From < 0 || q.Size <= 0 || q.Size > size-q.From {
		return nil, fmt.Errorf("%s has %d bytes, not %d from %d on", q.File, size, q.Size, q.From)
	}
	f, err := s.FS.OpenRead(path.Join(s.DataDir, q.File))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, min(q.Size, chunkBytes))
	_, err = f.ReadAt(b, q.From)
	return b, err
}

// size returns how much of a file may be sent: whole blocks of a segment only, because one may
// be being written after them.
func (s *Source) size(file string) (int64, error) {
	dir, name := path.Split(file)
	switch {
	case dir == datadir.CheckpointDir+"/" && checkpoint.IsName(name):
		return s.FS.Stat(path.Join(s.DataDir, file))
	case dir == datadir.LogDir+"/":
		for _, g := range s.Log.Segments() {
			if g.Name == name {
				return g.Size, nil
			}
		}
	}
	return 0, fs.ErrNotExist
}
