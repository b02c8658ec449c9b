package console

import (
	"sync"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var overviewPages = []route{{"GET {$}", "overview", (*page).overview}}

const (
	queuesPerPage = 50
	sparkMinutes  = 30
	attentionTop  = 5 // on the overview
)

// overview shows the queues, and first what needs attention. With 10,000 queues that takes as long
// as the list of queues, so both are asked for at once.
func (p *page) overview() error {
	var data overview
	var attention, queues error
	var asked sync.WaitGroup
	if p.At == "" && p.part("attention") {
		asked.Go(func() { attention = data.readAttention(p) })
	}
	if p.part("queues") {
		queues = data.readQueues(p)
	}
	asked.Wait()
	if attention != nil {
		return attention
	}
	if queues != nil {
		return queues
	}
	return p.show("overview", "Overview", &data)
}

type overview struct {
	Attention []wire.AttentionItem // the worst
	More      int64                // beyond these
	Queues    []queueRow
	Filtered  bool
	Pager     pager
}

type queueRow struct {
	wire.Queue
	Lately *spark // nil: not known
}

func (d *overview) readAttention(p *page) error {
	items, err := p.api.Attention(p.ctx, p.now())
	n := min(len(items), attentionTop)
	d.Attention, d.More = items[:n], int64(len(items)-n)
	return err
}

func (d *overview) readQueues(p *page) error {
	query := client.QueueQuery{
		Name: p.Param("name"), Namespace: p.Param("namespace"),
		Limit: queuesPerPage, After: p.Param("after"),
	}
	list, err := p.api.QueuePage(p.ctx, query, p.then()...)
	if err != nil {
		return err
	}
	d.Pager, d.Filtered = p.pager(list.NextCursor), query.Name != "" || query.Namespace != ""
	for _, q := range list.Queues {
		rate := p.lately(q.Name, sparkMinutes, 1, "%d enqueued in 30 minutes",
			func(m *wire.Minute) uint64 { return m.Enqueued })
		d.Queues = append(d.Queues, queueRow{q, rate})
	}
	return nil
}
