package console

import (
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

var queuePages = []route{{"GET queues/{queue}", "overview", (*page).queue}}

// queue shows one queue.
func (p *page) queue() error {
	name := p.r.PathValue("queue")
	q, err := p.api.Queue(p.ctx, name, p.then()...)
	if err != nil {
		return err
	}
	return p.show("queue", name, queueData{Queue: q})
}

type queueData struct{ Queue *wire.Queue }

// perMinute returns a value of each of the last n minutes, the oldest first. Minutes in which
// nothing happened are not listed.
func perMinute(minutes []wire.Minute, n int, of func(*wire.Minute) uint64) []float64 {
	values := make([]float64, n)
	last := time.Now().Truncate(time.Minute)
	for i := range minutes {
		back := int(last.Sub(minutes[i].Start.Time()) / time.Minute)
		if at := n - 1 - back; at >= 0 && at < n {
			values[at] = float64(of(&minutes[i]))
		}
	}
	return values
}
