package replay

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Past states are as large as the live one: they go when nobody asks any more.
func TestIdlePastForgets(t *testing.T) {
	w := begin(t, 1)
	for range 3 {
		w.do()
	}
	synctest.Test(t, func(t *testing.T) {
		p := NewPast(w.source(), 4)
		for i := w.index - 2; i <= w.index; i++ {
			s, err := p.At(t.Context(), at(i))
			require.True(t, err == nil && s.Index() == i, "%d: %v", i, err)
		}
		require.Equal(t, p.known.Len(), 3, "states are kept")
		forgotten := func() {
			time.Sleep(2 * keepIdle) // the bubble's time
			synctest.Wait()
			require.Equal(t, p.known.Len(), 0, "states are kept")
		}
		forgotten()
		p.folding <- struct{}{} // folding takes longer than that
		go p.At(t.Context(), at(w.index))
		forgotten()
		<-p.folding
		synctest.Wait()
		require.Equal(t, p.known.Len(), 1, "states are kept")
		forgotten()
	})
}

// Whoever asks for the past while others wait for it gets an error rather than a queue without end.
func TestPastBoundsItsReaders(t *testing.T) {
	w := begin(t, 1)
	w.do()
	synctest.Test(t, func(t *testing.T) {
		p, first := NewPast(w.source(), 4), at(w.index)
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
