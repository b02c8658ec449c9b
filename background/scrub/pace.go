package scrub

import (
	"context"
	"time"

	"github.com/qlogd/qlogd/background/loop"
)

const (
	busyPause = time.Second
	// pauseFor is the pause after what may be read in that time.
	pauseFor = 50 * time.Millisecond
)

// pace bounds how much is read in a second.
type pace struct {
	rate int64
	busy func() bool
	read int64         // bytes, in all
	owed time.Duration // of pauses
	due  time.Time     // when more may be read
}

// add records n bytes, and sleeps until more may be read, or ctx ends.
func (p *pace) add(ctx context.Context, n int64) {
	p.read += n
	p.owed += time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
	if p.owed < pauseFor {
		return
	}
	// What was missed is not made up for.
	if now := time.Now(); p.due.Before(now) {
		p.due = now
	}
	p.due, p.owed = p.due.Add(p.owed), 0
	loop.Sleep(ctx, time.Until(p.due))
	for p.busy() && ctx.Err() == nil {
		loop.Sleep(ctx, busyPause)
	}
}
