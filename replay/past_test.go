package replay

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
)

// Past states are as large as the live one: they go when nobody asks any more.
func TestIdlePastForgets(t *testing.T) {
	fs := memdisk.New()
	must(t, fs.MkdirAll("/log"))
	l, err := log.Open(log.Options{FS: fs, Dir: "/log"})
	must(t, err)
	defer l.Close()
	for i := uint64(1); i < 4; i++ {
		must(t, l.Append(&event.Block{Index: i, Time: int64(i)}))
	}
	synctest.Test(t, func(t *testing.T) {
		p := NewPast(&Source{Log: l, FS: fs, Checkpoints: "/checkpoints"}, 4)
		for i := uint64(1); i < 4; i++ {
			s, err := p.At(t.Context(), event.Instant{Kind: event.InstantIndex, Index: i})
			if err != nil || s.Index() != i {
				t.Fatal(s, err)
			}
		}
		require.Equal(t, p.known.Len(), 3, "states are kept")
		forgotten := func() {
			time.Sleep(2 * keepIdle) // the bubble's time
			synctest.Wait()
			require.Equal(t, p.known.Len(), 0, "states are kept")
		}
		forgotten()
		p.folding <- struct{}{} // folding takes longer than that
		go p.At(t.Context(), event.Instant{Kind: event.InstantIndex, Index: 1})
		forgotten()
		<-p.folding
		synctest.Wait()
		require.Equal(t, p.known.Len(), 1, "states are kept")
		forgotten()
	})
}

// Whoever asks for the past while others wait for it gets an error rather than a queue without end.
func TestPastBoundsItsReaders(t *testing.T) {
	fs := memdisk.New()
	must(t, fs.MkdirAll("/log"))
	l, err := log.Open(log.Options{FS: fs, Dir: "/log"})
	must(t, err)
	defer l.Close()
	must(t, l.Append(&event.Block{Index: 1, Time: 1}))
	synctest.Test(t, func(t *testing.T) {
		p := NewPast(&Source{Log: l, FS: fs, Checkpoints: "/checkpoints"}, 4)
		first := event.Instant{Kind: event.InstantIndex, Index: 1}
		p.folding <- struct{}{} // a state is being folded
		read := make(chan error, maxWaiting)
		for range maxWaiting {
			go func() {
				_, err := p.At(t.Context(), first)
				read <- err
			}()
		}
		synctest.Wait()
		_, err := p.At(t.Context(), first)
		problem, ok := errors.AsType[*event.Problem](err)
		require.True(t, ok && problem.Code == event.CodeOverloaded, "%v", err)
		<-p.folding
		for range maxWaiting {
			must(t, <-read)
		}
		_, err = p.At(t.Context(), first)
		must(t, err)
	})
}
