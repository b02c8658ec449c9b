package loop

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Pace limits the bytes that background work reads per second. Nothing is read while the node is
// busy.
type Pace struct {
	limit *rate.Limiter
	busy  func() bool
}

const busyPause = 500 * time.Millisecond

// NewPace returns a Pace of bytes a second, with bursts of at most burst bytes.
func NewPace(bytes, burst int64, busy func() bool) *Pace {
	return &Pace{rate.NewLimiter(rate.Limit(bytes), int(burst)), busy}
}

// Wait returns when n more bytes may have been read, or the error of ctx once that has ended.
func (p *Pace) Wait(ctx context.Context, n int64) error {
	for p.busy() && ctx.Err() == nil {
		Sleep(ctx, busyPause)
	}
	for burst := int64(p.limit.Burst()); n > 0; n -= burst {
		if err := p.limit.WaitN(ctx, int(min(n, burst))); err != nil {
			return err
		}
	}
	return ctx.Err()
}
