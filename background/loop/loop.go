// Package loop repeats background work until a node stops, and limits its read rate.
package loop

import (
	"context"
	"time"
)

// Loop repeats one piece of work: after each Wake, after a pause, and sooner after an error.
type Loop struct {
	every, retry time.Duration
	wake         chan struct{}
}

// New returns a Loop with these pauses after success and after an error.
func New(every, retry time.Duration) *Loop {
	return &Loop{every: every, retry: retry, wake: make(chan struct{}, 1)}
}

// Wake makes Run work again at once. It never blocks.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. It logs an error with msg, but only once as long as it stays the same.
func (l *Loop) Run(
	ctx context.Context, work func(context.Context) error, log func(string, ...any), msg string,
) {
	last := ""
	for {
		err, pause := work(ctx), l.every
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			last = ""
		case err.Error() != last:
			last = err.Error()
			log(msg, "error", err)
			fallthrough
		default:
			pause = l.retry
		}
		select {
		case <-l.wake:
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// Sleep returns after d, or when ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
