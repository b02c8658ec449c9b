package log

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"path"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestDamagedPages: a byte is wrong in each page of a side file in turn, also of one that is in
// use. Every read still succeeds, and a log that is open for writing writes the file again.
func TestDamagedPages(t *testing.T) {
	s := begin(t, Options{SegmentSize: 1 << 20})
	text := strings.Repeat("x", 4500)
	var events []event.Event
	for i := range 400 { // about two segments, with 150 and more marks, subjects and aliases each
		events = append(events, s.block(event.Event{
			Type: event.Enqueued, Queue: "q", Alias: event.Hash{byte(i), byte(i >> 8), 1},
			Content: event.EncodeContent(&event.Content{Payload: []byte(text)}),
		})[0])
	}
	must(t, s.log.Close())
	name := path.Join("log", s.log.Segments()[0].SideFile)
	right := s.fs.Get(name)
	places := []int{0, len(right) - 1}
	for at := sideHeaderSize; at < len(right); at += step(2000, 16000) { // less than the shortest page
		places = append(places, at)
	}
	for _, at := range places {
		wrong := bytes.Clone(right)
		wrong[at] ^= 1
		for what, open := range map[string]func(Options) (*Log, error){
			"before it is opened": Open, "in use": Open, "to be read only": OpenReadOnly,
		} {
			if at == 0 && what == "in use" {
				continue // the header is read when the log is opened
			}
			t.Run(fmt.Sprintf("byte %d %s", at, what), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					disk := s.fs.Clone()
					var logged bytes.Buffer
					o := Options{FS: disk, Dir: "log", HeldFrom: 1,
						Logger: slog.New(slog.NewTextHandler(&logged, nil))}
					if what != "in use" {
						disk.Flip(name, at, 1)
					}
					l, err := open(o)
					must(t, err)
					defer l.Close()
					if what == "in use" {
						disk.Flip(name, at, 1)
					}
					readEvents(t, l, events)
					synctest.Wait() // for what is done in the background
					assert.Equal(t, strings.Count(logged.String(), "rebuilding side file"), 1)
					want := right
					if what == "to be read only" {
						want = wrong
					}
					assert.True(t, bytes.Equal(disk.Get(name), want), "the side file")
					readEvents(t, l, events)
				})
			})
		}
	}
}

// readEvents reads events, one to a block, in every way.
func readEvents(t *testing.T, l *Log, events []event.Event) {
	t.Helper()
	for i := 0; i < len(events); i += step(5, 37) {
		want := events[i]
		ref := event.RefOf(want.ID)
		e, err := l.Event(ref)
		require.True(t, err == nil && e.ID == want.ID, "event %d: %v", i, err)
		e, err = l.Find(want.Alias, 0)
		require.True(t, err == nil && e != nil && e.ID == want.ID, "alias %d: %v, %v", i, e, err)
		h, err := l.History(t.Context(), want.ID)
		require.True(t, err == nil && len(h) == 1 && h[0].ID == want.ID,
			"history %d: %v, %v", i, h, err)
		b, err := l.Block(ref.Index)
		must(t, err, "block %d", i)
		chain, err := l.ChainAt(ref.Index)
		must(t, err, "chain %d", i)
		require.Equal(t, chain, b.Chain, "chain %d", i)
		index, ok, err := l.SeekTime(event.ClockOf(want.ID))
		require.True(t, err == nil && ok && index == ref.Index,
			"time %d: %d, %v, %v", i, index, ok, err)
	}
	n := len(events) / 4
	for e, err := range l.Events(t.Context(), event.RefOf(events[n].ID).Index, math.MaxUint64) {
		must(t, err)
		require.Equal(t, e.ID, events[n].ID)
		n++
	}
	require.Equal(t, n, len(events))
}
