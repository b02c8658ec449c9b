package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

const (
	typeNDJSON = "application/x-ndjson"
	typeSSE    = "text/event-stream"
)

// streamWriteTimeout is how long a client may take to accept a write before the
// stream ends. It holds no memory here: the stream reads the log at the client's pace.
const streamWriteTimeout = 30 * time.Second

// stream sends events as NDJSON or server-sent events: those of the range, and with follow those
// that commit from then on, until the client hangs up or the server drains. A draining server
// begins no stream that follows: it would end at once, and its client reconnect without a pause.
func (s *Server) stream(q *request, f *eventQuery, media string) error {
	if f.follow && s.draining() {
		return shuttingDown
	}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	w := &eventWriter{q: q, rc: http.NewResponseController(q.w), media: media}
	if f.follow { // another list is served to its end: cut off it would look whole
		stop := context.AfterFunc(s.undrained, func() {
			cancel()
			w.deadline(time.Second) // a slow client must not hold up the end
		})
		defer stop()
		if w.flush() != nil {
			return nil
		}
	}
	defer w.deadline(streamWriteTimeout) // for the end of the answer
	for {
		err := w.events(ctx, f)
		switch {
		case err != nil && q.status == 0:
			return err
		case err != nil && ctx.Err() == nil && !errors.Is(err, errWrite):
			s.log.Error("event stream failed", "request_id", q.id, "error", err)
			panic(http.ErrAbortHandler) // half a stream must not look whole
		case err != nil, !f.follow, f.from > f.to, f.limit <= 0, !s.awaitMore(ctx, f.from-1, w):
			return nil
		}
	}
}

// awaitMore waits until the log's head is above index, with heartbeats. It returns false when
// the stream is over, or its token no longer valid.
func (s *Server) awaitMore(ctx context.Context, index uint64, w *eventWriter) bool {
	for {
		beat, cancel := context.WithTimeout(ctx, s.opts.Heartbeat)
		err := s.deps.Log.Wait(beat, index)
		cancel()
		switch {
		case ctx.Err() != nil || w.q.refused(s.rules[w.q.route]) != nil:
			return false
		case err == nil:
			return true
		case !errors.Is(err, context.DeadlineExceeded):
			s.log.Error("event stream failed", "request_id", w.q.id, "error", err)
			return false
		case w.heartbeat() != nil:
			return false
		}
	}
}

var errWrite = errors.New("the client does not read")

// eventWriter writes events to one client.
type eventWriter struct {
	q     *request
	rc    *http.ResponseController
	media string
}

// events sends what a query selects, up to the log's head.
func (w *eventWriter) events(ctx context.Context, f *eventQuery) error {
	for e, err := range w.q.scan(ctx, f) {
		if err != nil {
			return err
		}
		out := EventOf(e)
		b, err := wire.Marshal(&out)
		if err != nil {
			return err
		}
		text := string(b) + "\n"
		if w.media == typeSSE {
			text = fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", out.EventID, out.Type, b)
		}
		if err := w.write(text); err != nil {
			return err
		}
		if f.limit--; f.limit <= 0 {
			break
		}
	}
	return w.flush()
}

func (w *eventWriter) heartbeat() error {
	beat := "\n" // NDJSON: an empty line
	if w.media == typeSSE {
		beat = ":\n\n"
	}
	return cmp.Or(w.write(beat), w.flush())
}

func (w *eventWriter) deadline(in time.Duration) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(in))
}

// write writes text, "" for only the answer's header.
func (w *eventWriter) write(text string) error {
	w.deadline(streamWriteTimeout)
	if w.q.status == 0 {
		w.q.status = http.StatusOK
		w.q.w.Header().Set("Content-Type", w.media)
		w.q.w.WriteHeader(http.StatusOK)
	}
	if text != "" {
		if _, err := w.q.w.Write([]byte(text)); err != nil {
			return errWrite
		}
	}
	return nil
}

func (w *eventWriter) flush() error {
	_ = w.write("")
	if err := w.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errWrite
	}
	// The next heartbeat may come later than this deadline, so it is removed.
	_ = w.rc.SetWriteDeadline(time.Time{})
	return nil
}
