package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBatch is how much of what is short goes into one write, beside one
	// chunk of what is long.
	maxBatch = 128 << 10
	// maxOwed bounds the refusals and pongs that the other side has given cause
	// for and does not read.
	maxOwed = 10_000
)

var errBroken = errors.New("the other side broke the protocol")

// wire is an end of a connection on which calls go as frames. What is common to
// both ends is here; caller and server embed it.
//
// Whoever has something to say puts it in line under mu; one goroutine at a time
// writes what has gathered, without mu.
type wire struct {
	c     *conn
	r     *bufio.Reader
	begun time.Time
	heard atomic.Int64  // when something last came, since begun
	kick  chan struct{} // wakes writer
	gone  chan struct{} // closed when err is set

	// take adds to a batch what waits at this end, mu held; nil: nothing does.
	take func(batch []byte) []byte

	mu      sync.Mutex
	err     error     // why it is over
	ready   []byte    // whole frames that wait
	spare   []byte    // ready's other buffer
	long    []*parcel // begun, with more to come; one chunk of one at a time
	owed    int       // frames in ready and parcels in long that the other side gave cause for since the last batch
	asked   bool      // a ping is out, since
	askedAt time.Duration
	pings   *time.Timer
	writing bool
	kicked  bool
	silent  chan struct{} // closed when nothing is left to write
}

func newWire(c *conn) *wire {
	w := &wire{c: c, begun: time.Now(), kick: make(chan struct{}, 1), gone: make(chan struct{})}
	w.r = bufio.NewReaderSize((*ear)(w), maxChunk)
	return w
}

// ear reads, and notes when something came.
type ear wire

func (e *ear) Read(p []byte) (int, error) {
	n, err := e.c.Read(p)
	if n > 0 {
		e.heard.Store(int64(time.Since(e.begun)))
	}
	return n, err
}

// listen asks who has said nothing for pingAfter whether it is there, and ends
// the connection when no answer comes.
func (w *wire) listen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, heard := time.Since(w.begun), time.Duration(w.heard.Load())
	quiet := now - heard
	switch {
	case w.err != nil:
	case quiet < pingAfter:
		w.asked = false
		w.pings.Reset(pingAfter - quiet)
	case !w.asked || heard >= w.askedAt:
		w.asked, w.askedAt = true, now
		w.ready = head{kind: framePing}.append(w.ready)
		w.kickLocked()
		w.pings.Reset(pingWait)
	default:
		w.endLocked(fmt.Errorf("nothing was heard for %v", quiet.Round(time.Millisecond)))
	}
}

// endLocked closes the connection. What was under way on it is for who reads it
// to settle, when reading has failed.
func (w *wire) endLocked(err error) {
	if w.err != nil {
		return
	}
	w.err = err
	if w.pings != nil {
		w.pings.Stop()
	}
	close(w.gone)
	if w.silent != nil {
		close(w.silent)
		w.silent = nil
	}
	w.c.Close()
}

func (w *wire) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(err)
}

// kickLocked has what is in line written, by somebody else.
func (w *wire) kickLocked() {
	if w.writing || w.kicked {
		return
	}
	w.kicked = true
	w.kick <- struct{}{}
}

// writer writes when it is kicked, until the connection is over.
func (w *wire) writer() {
	w.mu.Lock()
	if w.err == nil {
		w.pings = time.AfterFunc(pingAfter, w.listen)
	}
	w.mu.Unlock()
	for {
		select {
		case <-w.kick:
			w.mu.Lock()
			w.kicked = false
			w.mu.Unlock()
			w.flush()
		case <-w.gone:
			return
		}
	}
}

// flush writes what is in line, unless somebody is writing, who then writes that
// too.
func (w *wire) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing {
		return
	}
	w.writing = true
	for w.err == nil {
		b := w.batchLocked()
		if len(b) > 0 {
			w.mu.Unlock()
			err := w.write(b)
			w.mu.Lock()
			if err != nil {
				w.endLocked(fmt.Errorf("write: %w", err))
			}
		}
		if cap(b) <= 4*maxBatch {
			w.spare = b[:0]
		}
		if len(b) == 0 {
			break
		}
	}
	w.writing = false
	if w.silent != nil {
		close(w.silent)
		w.silent = nil
	}
}

// batchLocked makes the next write of what is in line.
func (w *wire) batchLocked() []byte {
	b := w.ready
	w.ready, w.spare, w.owed = w.spare, nil, 0
	if len(w.long) > 0 {
		p := w.long[0]
		w.long = slices.Delete(w.long, 0, 1)
		var last bool
		if b, last = p.append(b); !last {
			w.long = append(w.long, p)
		}
	}
	if w.take != nil {
		b = w.take(b)
	}
	return b
}

// write writes b, as long as a byte of it gets through every writeWait.
func (w *wire) write(b []byte) error {
	for {
		if err := w.c.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
			return err
		}
		n, err := w.c.Write(b)
		if b = b[n:]; len(b) == 0 || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// sendLocked puts a parcel in line.
func (w *wire) sendLocked(p *parcel) {
	w.owed++
	if len(p.body) <= maxChunk {
		w.ready, _ = p.append(w.ready)
		return
	}
	w.long = append(w.long, p)
}

// oweLocked puts in line what the other side gave cause for, who may do so
// without end and not read it.
func (w *wire) oweLocked(frame func(b []byte) []byte) error {
	if w.owed++; w.owed > maxOwed {
		return fmt.Errorf("%w: it does not read its answers", errBroken)
	}
	w.ready = frame(w.ready)
	w.kickLocked()
	return nil
}

// next reads a head. It answers pings itself.
func (w *wire) next() (head, error) {
	for {
		b, err := w.r.Peek(frameHead)
		if err != nil {
			if err == io.EOF && len(b) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return head{}, err
		}
		h, err := parseHead(b)
		if err != nil {
			return head{}, fmt.Errorf("%w: %w", errBroken, err)
		}
		w.r.Discard(frameHead)
		switch h.kind {
		case framePing:
			w.mu.Lock()
			err := w.oweLocked(head{kind: framePong}.append)
			w.mu.Unlock()
			if err != nil {
				return head{}, err
			}
		case framePong:
		default:
			return h, nil
		}
	}
}

// read reads size bytes of a body, or says that they do not belong there.
func (w *wire) read(a *arriving, size int) error {
	to := a.room(size)
	if to == nil {
		return fmt.Errorf("%w: a body of %d bytes is not as long as announced", errBroken, a.total)
	}
	_, err := io.ReadFull(w.r, to)
	if err != nil {
		a.body = a.body[:len(a.body)-size] // it is not whole
	}
	return err
}

func (w *wire) skip(size int) error {
	_, err := w.r.Discard(size)
	return err
}
