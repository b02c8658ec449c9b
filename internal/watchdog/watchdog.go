// Package watchdog notices disks that fail, do not answer, or fill up.
package watchdog

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/internal/pages"
)

// Disk watches operations that wait for a disk, which is stalled after StallAfter and has failed
// after Timeout.
//
// It counts ticks that the process has seen, not time. While a process is paused (SIGSTOP, a
// hypervisor's snapshot), its clock goes on or not; either way the pause is one tick at most, and
// the write, which was paused too, has the rest of its time.
type Disk struct {
	Timeout time.Duration
	Logger  *slog.Logger
	// Fatal must end the process.
	Fatal func(error)

	stalls atomic.Int32 // what has taken StallAfter, and has not returned
	broken atomic.Bool  // what is on disk is unknown
}

const tick = 100 * time.Millisecond

// StallAfter is how long the disk may take before it counts as stalled.
const StallAfter = 5 * time.Second

var (
	// ErrBroken is returned after a write that has failed.
	ErrBroken = errors.New("the disk failed before; what it holds is unknown")
	// ErrStalled is given to Fatal after Timeout.
	ErrStalled = errors.New("the disk does not answer")
)

// Write runs do, which writes to a file. Any error ends the process: after a failed fsync the
// kernel may have dropped the pages, so that a second one "succeeds" with the data lost; it is
// never retried.
func (w *Disk) Write(what, file string, do func() error) (err error) {
	if w.broken.Load() {
		return ErrBroken
	}
	w.Watch(what+" in "+file, func() { err = pages.Try(do) })
	if err != nil {
		w.broken.Store(true)
		err = fmt.Errorf("%s in %s: %w", what, file, err)
		w.Fatal(err)
	} else if w.broken.Load() {
		err = ErrBroken // the process is about to end
	}
	return err
}

// Watch runs something that waits for the disk.
func (w *Disk) Watch(what string, do func()) {
	var mu sync.Mutex // guards the following
	var timer *time.Timer
	waited, ended := time.Duration(0), false
	onTick := func() {
		mu.Lock()
		defer mu.Unlock()
		waited += tick
		switch {
		case ended:
			return
		case waited == StallAfter:
			w.stalls.Add(1)
			w.Logger.Warn("disk stalled", "operation", what, "after", StallAfter)
		case waited >= w.Timeout:
			w.broken.Store(true)
			go w.Fatal(fmt.Errorf("%s: %w within %v", what, ErrStalled, w.Timeout))
			return
		}
		timer.Reset(tick) // not before this tick was seen
	}
	began := time.Now()
	mu.Lock()
	timer = time.AfterFunc(tick, onTick)
	mu.Unlock()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		if ended = true; waited >= StallAfter {
			w.stalls.Add(-1)
			w.Logger.Warn("disk recovered", "operation", what, "after", time.Since(began))
		}
	}()
	do()
}

// Stalled reports whether the disk has not answered for StallAfter.
func (w *Disk) Stalled() bool { return w.stalls.Load() > 0 }

// Space is the free space on a disk.
type Space struct {
	// Read returns it; nil: there is always enough.
	Read func() (uint64, error)

	mu   sync.Mutex
	free uint64 // as of at
	at   time.Time
}

// spaceAge is how old the result of Free may be: it is asked for with each write.
const spaceAge = 200 * time.Millisecond

// Free returns the free space, as of spaceAge ago at most. Where it cannot be read it is unlimited:
// the writes themselves will show.
func (s *Space) Free() uint64 {
	if s.Read == nil {
		return math.MaxUint64
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.at) >= spaceAge {
		free, err := s.Read()
		if err != nil {
			free = math.MaxUint64
		}
		s.free, s.at = free, now
	}
	return s.free
}
