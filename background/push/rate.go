package push

import (
	"math"
	"time"
)

// pace is a token bucket: rate deliveries a second, of which some twentieth of a
// second's may come at once. It is not locked: its queue is.
type pace struct {
	rate   float64 // 0: no limit
	tokens float64
	at     time.Time
}

func newPace(rate float64, now time.Time) pace { return pace{rate: rate, tokens: 1, at: now} }

// allows returns how many deliveries of n may begin, and if none, how long it is
// until one may.
func (p *pace) allows(n int, now time.Time) (int, time.Duration) {
	if p.rate <= 0 {
		return n, 0
	}
	p.tokens = min(p.tokens+now.Sub(p.at).Seconds()*p.rate, max(1, p.rate/20))
	p.at = now
	if p.tokens < 1 {
		return 0, time.Duration(math.Ceil((1 - p.tokens) / p.rate * float64(time.Second)))
	}
	return min(n, int(p.tokens)), 0
}

// begun takes the tokens of n deliveries.
func (p *pace) begun(n int) { p.tokens -= float64(n) }
