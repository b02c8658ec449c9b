package console

import (
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var deadPages = []route{
	{"GET dead", "dead", (*page).dead},
	{"GET queues/{queue}/dead", "dead", (*page).deadOf},
	{"GET queues/{queue}/undo", "dead", (*page).undo},
}

// dead lists the queues in which messages died.
func (p *page) dead() error {
	list, err := p.api.QueuePage(p.ctx, client.QueueQuery{After: p.Param("after")}, p.then()...)
	if err != nil {
		return err
	}
	data := deadData{Pager: p.pager(list.NextCursor)}
	for _, q := range list.Queues {
		if q.Dead > 0 {
			data.Queues = append(data.Queues, q)
		}
	}
	return p.show("dead", "Dead letters", data)
}

type deadData struct {
	Queues []wire.Queue
	Pager  pager
}

// deadOf shows why messages died in a queue.
func (p *page) deadOf() error {
	name := p.r.PathValue("queue")
	groups, err := p.api.DeadGroups(p.ctx, name, client.DeadQuery{}, p.then()...)
	if err != nil {
		return err
	}
	return p.show("dead-queue", "Dead letters of "+name, deadOfData{name, groups})
}

type deadOfData struct {
	Queue  string
	Groups *wire.DeadGroups
}

// undo brings back what was acked, purged, deleted or expired.
func (p *page) undo() error {
	name := p.r.PathValue("queue")
	q, err := p.api.Queue(p.ctx, name, p.now())
	if err != nil {
		return err
	}
	return p.show("undo", "Undo in "+name, q)
}
