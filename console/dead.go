package console

import (
	"cmp"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var deadPages = []route{
	{"GET dead", "dead", (*page).dead},
	{"GET queues/{queue}/dead", "dead", (*page).deadOf},
	{"POST queues/{queue}/dead/replay", "dead", (*page).replay},
	{"POST queues/{queue}/dead/purge", "dead", (*page).purgeDead},
	{"POST queues/{queue}/undo", "dead", (*page).undo},
}

const (
	deadQueuesPerPage = 25
	deadPerPage       = 50
	groupsShown       = 50
	groupSteps        = 48     // of the chart of a group
	maxLiveDead       = 10_000 // dead letters of a queue whose groups are counted unasked
	dayMinutes        = 24 * 60
)

// dead lists the queues in which messages died.
func (p *page) dead() error {
	list, err := p.api.QueuePage(p.ctx, client.QueueQuery{
		Dead: true, Name: p.Param("name"), Limit: deadQueuesPerPage, After: p.Param("after"),
	}, p.then()...)
	if err != nil {
		return err
	}
	data := deadData{Pager: p.pager(list.NextCursor)}
	for _, q := range list.Queues {
		data.Queues = append(data.Queues, deadRow{q, p.deaths(q.Name)})
	}
	return p.show("dead", "Dead letters", data)
}

type deadData struct {
	Queues []deadRow
	Pager  pager
}

type deadRow struct {
	wire.Queue
	Deaths *spark // nil: not known
}

// deaths returns a chart of how many messages died in each half hour of the last day, nil for a
// past.
func (p *page) deaths(queue string) *spark {
	return p.lately(queue, dayMinutes, dayMinutes/groupSteps,
		func(m *wire.Minute) uint64 { return m.DeadLettered },
		func(n int64) string { return plural(n, "message") + " died in the last 24 h" })
}

// deadOfData is what died in a queue: grouped by what went wrong, and message by message.
type deadOfData struct {
	Queue    string
	Total    int64 // of all groups that are shown
	Groups   []groupRow
	More     int64 // groups that are not shown
	Step     string
	Filter   wire.DeadFilter
	Query    map[string]any // the filter, as parameters of a page
	State    string         // dead, replayed
	Messages []wire.Message
	Pager    pager
	Live     bool // the groups are counted again and again

	Uncounted bool // there are so many dead letters that they are counted when it is asked for
}

type groupRow struct {
	wire.DeadGroup
	Over  spark
	Query map[string]any // selects it, with the filter
}

// Chosen reports whether the messages are those of one group.
func (d *deadOfData) Chosen(g *groupRow) bool { return g.Fingerprint == d.Filter.Fingerprint }

// Filtered reports whether not all is shown.
func (d *deadOfData) Filtered() bool { return d.Filter != (wire.DeadFilter{}) }

// deadFilter reads a filter from the parameters of a page or a form.
// A duration before now becomes a time: what is done is what was previewed.
func deadFilter(get func(name string) string) wire.DeadFilter {
	now := time.Now()
	return wire.DeadFilter{
		Reason: get("reason"), Error: get("error"),
		From: pastOf(get("from"), now), To: pastOf(get("to"), now),
		Fingerprint: get("fingerprint"), Key: optional(get("key")), Kind: optional(get("kind")),
	}
}

// params is the inverse of deadFilter.
func params(f *wire.DeadFilter) map[string]any {
	q := map[string]any{}
	for name, value := range map[string]string{
		"reason": f.Reason, "error": f.Error, "from": f.From, "to": f.To,
		"fingerprint": f.Fingerprint, "key": deref(f.Key), "kind": deref(f.Kind),
	} {
		if value != "" {
			q[name] = value
		}
	}
	return q
}

// deadOf shows why messages died in a queue, and which.
func (p *page) deadOf() error {
	data := &deadOfData{
		Queue: p.r.PathValue("queue"), Filter: deadFilter(p.Param),
		State: cmp.Or(p.Param("state"), "dead"),
	}
	data.Query = params(&data.Filter)
	if p.part("groups") && data.State == "dead" {
		asked := p.Param("part") == "groups" || p.Param("groups") != ""
		q, err := p.api.Queue(p.ctx, data.Queue, p.then()...)
		if err == nil {
			data.Live = p.At == "" && q.Dead <= maxLiveDead
		}
		if data.Uncounted = !asked && (err != nil || q.Dead > maxLiveDead); !data.Uncounted {
			if err := p.groups(data); err != nil {
				return err
			}
		}
	}
	if p.part("messages") {
		options := append(p.then(), client.MaxPayload(previewBytes))
		list, err := p.api.Dead(p.ctx, data.Queue, client.DeadQuery{
			DeadFilter: data.Filter, State: data.State, Limit: deadPerPage, After: p.Param("after"),
		}, options...)
		if err != nil {
			return err
		}
		data.Messages, data.Pager = list.Dead, p.pager(list.NextCursor)
	}
	return p.show("dead-queue", "Dead letters of "+data.Queue, data)
}

// groups adds the groups of what the filter selects, whichever of them was chosen.
func (p *page) groups(data *deadOfData) error {
	q := client.DeadQuery{DeadFilter: data.Filter, Limit: 1}
	q.Fingerprint = ""
	oldest, err := p.api.Dead(p.ctx, data.Queue, q,
		append(p.then(), client.MaxPayload(previewBytes))...)
	if err != nil || len(oldest.Dead) == 0 {
		return err
	}
	now := p.clock().Time()
	begin := now
	if d := oldest.Dead[0].Dead; d != nil {
		begin = d.FailedAt.Time()
	}
	q.Step, q.Limit = stepOf(now.Sub(begin)), groupsShown
	list, err := p.api.DeadGroups(p.ctx, data.Queue, q, p.then()...)
	if err != nil {
		return err
	}
	data.Step, data.More = span(q.Step), list.Total-int64(len(list.Groups))
	last := now.UnixMilli() / q.Step.Milliseconds()
	for _, g := range list.Groups {
		values := make([]float64, groupSteps)
		for _, c := range g.Counts {
			back := last - int64(c.Start)/q.Step.Milliseconds()
			if i := groupSteps - 1 - back; i >= 0 && i < groupSteps {
				values[i] = float64(c.Count)
			}
		}
		query := params(&data.Filter)
		query["fingerprint"] = g.Fingerprint
		data.Total += g.Count
		data.Groups = append(data.Groups, groupRow{
			g, sparks(plural(g.Count, "message")+", by "+data.Step, values), query,
		})
	}
	return nil
}

// stepOf returns the step of a chart of groupSteps steps over a time.
func stepOf(over time.Duration) time.Duration {
	const day = 24 * time.Hour
	for _, step := range []time.Duration{
		time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour,
		12 * time.Hour, day, 2 * day, 7 * day, 30 * day,
	} {
		if over < step*(groupSteps-1) {
			return step
		}
	}
	return 365 * day
}
