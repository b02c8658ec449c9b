package console

import (
	"fmt"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var overviewPages = []route{{"GET {$}", "overview", (*page).overview}}

const (
	queuesPerPage = 50
	sparkMinutes  = 30
	attentionTop  = 5 // on the overview
)

// overview shows the queues, and first what needs attention.
func (p *page) overview() error {
	list, err := p.api.QueuePage(p.ctx, client.QueueQuery{
		Name: p.Param("name"), Namespace: p.Param("namespace"),
		Limit: queuesPerPage, After: p.Param("after"),
	}, p.then()...)
	if err != nil {
		return err
	}
	data := overview{Pager: p.pager(list.NextCursor)}
	for _, q := range list.Queues {
		data.Queues = append(data.Queues, queueRow{Queue: q, Rate: p.rate(q.Name)})
	}
	if p.At == "" && p.part("attention") {
		if data.Attention, err = p.api.Attention(p.ctx, p.now()); err != nil {
			return err
		}
		data.More = len(data.Attention) - attentionTop
		data.Attention = data.Attention[:min(len(data.Attention), attentionTop)]
	}
	return p.show("overview", "Overview", data)
}

type overview struct {
	Attention []wire.AttentionItem // the worst
	More      int                  // beyond these
	Queues    []queueRow
	Pager     pager
}

type queueRow struct {
	wire.Queue
	Rate *spark // nil: not known
}

// rate returns a chart of what was enqueued in each of the last minutes, nil for a past.
func (p *page) rate(queue string) *spark {
	if p.At != "" {
		return nil
	}
	stats, err := p.api.QueueStats(p.ctx, queue, sparkMinutes, p.now())
	if err != nil {
		return nil // the counts are being made; the page is of use without them
	}
	enqueued := perMinute(stats.Minutes, sparkMinutes, func(m *wire.Minute) uint64 {
		return m.Enqueued
	})
	rate := 0.0
	if stats.MessagesPerMinute != nil {
		rate = *stats.MessagesPerMinute
	}
	s := sparks(fmt.Sprintf("%.0f a minute", rate), enqueued)
	return &s
}
