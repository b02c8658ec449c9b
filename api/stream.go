package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

const (
	typeNDJSON = "application/x-ndjson"
	typeSSE    = "text/event-stream"
)

// streamWriteTimeout is how long a client may take to make room for what is
// sent to it, before the stream ends. It holds no memory here: the stream reads
// the log at the client's pace.
const streamWriteTimeout = 30 * time.Second

// stream tells events as NDJSON or server-sent events: those of the range, and
// with follow those that commit from then on, until the client hangs up or the
// server drains. One that follows is not begun then: it would end at once, and
// its client ask again without a pause.
func (s *Server) stream(q *request, f *eventQuery, media string) error {
	drain := s.drain
	switch {
	case !f.follow:
		drain = nil // a list is served to its end: cut off it would look whole
	case s.draining():
		return shuttingDown
	}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	w := &eventWriter{q: q, rc: http.NewResponseController(q.w), sse: media == typeSSE}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-drain:
			cancel()
			_ = w.rc.SetWriteDeadline(time.Now().Add(time.Second)) // one that does not read must not hold up the end
		case <-stop:
		}
	}()
	defer func() { _ = w.rc.SetWriteDeadline(time.Now().Add(streamWriteTimeout)) }() // for the end of the answer
	started := false
	start := func() {
		if !started {
			started = true
			q.status = http.StatusOK
			q.w.Header().Set("Content-Type", media)
			q.w.WriteHeader(q.status)
		}
	}
	if f.follow {
		start()
		if err := w.flush(); err != nil {
			return nil
		}
	}
	last, sent := f.after, 0
	for {
		err := s.scan(ctx, f, &last, func(e *event.Event) (bool, error) {
			start()
			if f.matches(e) {
				sent++
				if err := w.event(e); err != nil {
					return false, err
				}
			}
			return f.limit == 0 || sent < f.limit, nil
		})
		if err == nil {
			start()
			err = w.flush()
		}
		switch {
		case err != nil && !started:
			return err
		case err != nil:
			if ctx.Err() == nil && !errors.Is(err, errWrite) {
				// Half a stream must not look whole.
				s.log.Error("event stream ends", "request_id", q.id, "error", err)
				panic(http.ErrAbortHandler)
			}
			return nil
		case !f.follow || f.bounded && f.from > f.to || f.limit > 0 && sent >= f.limit:
			return nil
		}
		if !s.awaitMore(ctx, f.from-1, w) || q.refused(s.rules[q.route]) != nil {
			return nil // over, or its token no longer counts
		}
	}
}

// awaitMore waits until the log's head is above index, with heartbeats; false
// where the stream is over.
func (s *Server) awaitMore(ctx context.Context, index uint64, w *eventWriter) bool {
	for {
		beat, cancel := context.WithTimeout(ctx, s.opts.Heartbeat)
		err := s.deps.Log.Wait(beat, index)
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		case !errors.Is(err, context.DeadlineExceeded):
			s.log.Error("event stream ends", "error", err)
			return false
		}
		if w.q.refused(s.rules[w.q.route]) != nil || w.heartbeat() != nil {
			return false
		}
	}
}

var errWrite = errors.New("the client does not read")

// eventWriter writes events to one client.
type eventWriter struct {
	q   *request
	rc  *http.ResponseController
	sse bool
	buf []byte
}

func (w *eventWriter) event(e *event.Event) error {
	out := EventOf(e)
	b, err := wire.Marshal(&out)
	if err != nil {
		return err
	}
	w.buf = w.buf[:0]
	if w.sse {
		w.buf = append(w.buf, "id: "...)
		w.buf = append(w.buf, out.EventID...)
		w.buf = append(w.buf, "\nevent: "...)
		w.buf = append(w.buf, out.Type...)
		w.buf = append(w.buf, "\ndata: "...)
	}
	w.buf = append(append(w.buf, b...), '\n')
	if w.sse {
		w.buf = append(w.buf, '\n')
	}
	return w.write()
}

func (w *eventWriter) heartbeat() error {
	w.buf = append(w.buf[:0], '\n') // NDJSON: an empty line
	if w.sse {
		w.buf = append(w.buf[:0], ":\n\n"...)
	}
	if err := w.write(); err != nil {
		return err
	}
	return w.flush()
}

func (w *eventWriter) write() error {
	_ = w.rc.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	if _, err := w.q.w.Write(w.buf); err != nil {
		return errWrite
	}
	return nil
}

func (w *eventWriter) flush() error {
	_ = w.rc.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	if err := w.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errWrite
	}
	// The next heartbeat may come later than this deadline, so it goes.
	_ = w.rc.SetWriteDeadline(time.Time{})
	return nil
}
