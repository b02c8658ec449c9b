package peer

import (
	"log/slog"
	"sync"
	"time"
)

// told is a message that is logged at most once a minute, with the number of
// times there was cause for it since: whoever can connect must not be able to
// fill the disk.
type told struct {
	mu    sync.Mutex
	last  time.Time
	count int
}

func (t *told) tell(logger *slog.Logger, msg string, args ...any) {
	t.mu.Lock()
	t.count++
	now := time.Now()
	if !t.last.IsZero() && now.Sub(t.last) < time.Minute {
		t.mu.Unlock()
		return
	}
	count := t.count
	t.last, t.count = now, 0
	t.mu.Unlock()
	logger.Warn(msg, append(args, "times", count)...)
}
