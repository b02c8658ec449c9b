package console

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
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
	groupSteps        = 48   // of the chart of a group
	maxLiveDead       = 1000 // dead letters of a queue whose groups are counted unasked
	groupsKept        = 1000
	countsKept        = 20
	countedAtOnce     = 500 // dead letters
	countFor          = 500 * time.Millisecond
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
	data := listed[queueRow]{Pager: p.pager(list.NextCursor)}
	for _, q := range list.Queues {
		deaths := p.lately(q.Name, dayMinutes, dayMinutes/groupSteps, "%d died in the last 24 h",
			func(m *wire.Minute) uint64 { return m.DeadLettered })
		data.Items = append(data.Items, queueRow{q, deaths})
	}
	return p.show("dead", "Dead letters", data)
}

// deadOfData is what died in a queue: grouped by what went wrong, and message by message.
type deadOfData struct {
	Queue    string
	Dead     int64 // that there are, whatever the filter; 0: not known
	Groups   []groupRow
	Grouped  int64 // messages, of all groups that are shown
	More     int64 // groups that are not shown
	Step     string
	Filter   wire.DeadFilter
	Query    map[string]any // the filter, as parameters of a page
	State    string         // dead, replayed
	Messages []wire.Message
	Pager    pager
	Live     bool // the groups are counted again and again

	// There are so many dead letters that they are grouped only when it is asked for.
	Ask      map[string]any // Query, and what asks for it
	Counting bool
	Read     int64 // dead letters so far
}

type groupRow struct {
	wire.DeadGroup
	Over  spark
	Query map[string]any // selects it, with the filter
}

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
	data.Ask = maps.Clone(data.Query)
	data.Ask["groups"] = time.Now().UnixMilli()
	status := http.StatusOK
	if p.part("groups") && data.State == "dead" {
		q, err := p.api.Queue(p.ctx, data.Queue, p.then()...)
		few := err == nil && q.Dead <= maxLiveDead
		switch {
		case err == nil:
			data.Dead, data.Live = q.Dead, few && p.At == ""
		case !errors.Is(err, client.ErrQueueNotFound): // else it may be deleted
			return err
		}
		if few || p.Param("groups") != "" {
			if err := p.groups(data); err != nil {
				return err
			}
			if p.fragment() && !few && !data.Counting {
				status = stopPolling
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
		data.Pager.On = list.NextCursor != "" && len(list.Dead) == 0
	}
	return p.render(status, "dead-queue", "Dead letters of "+data.Queue, data)
}

// groups adds the groups of what the filter selects, whichever of them was chosen.
func (p *page) groups(data *deadOfData) error {
	count, asked, filter := &groupCount{}, p.Param("groups"), data.Filter
	filter.Fingerprint = ""
	if asked != "" {
		key := named([]any{p.who(), p.At, data.Queue, asked, filter})
		count = entry(p.c.counts, key, count)
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	now := p.clock().Time()
	if count.groups == nil {
		oldest, err := p.api.Dead(p.ctx, data.Queue, client.DeadQuery{Limit: 1},
			append(p.then(), client.MaxPayload(0))...)
		if err != nil || len(oldest.Dead) == 0 {
			return err
		}
		count.groups = map[string]*wire.DeadGroup{}
		count.step = stepOf(now.Sub(oldest.Dead[0].Dead.FailedAt.Time()))
	}
	end := time.Now().Add(countFor)
	for !count.done && (asked == "" || time.Now().Before(end)) {
		found, err := p.api.DeadGroups(p.ctx, data.Queue, client.DeadQuery{
			DeadFilter: filter, Step: count.step, Limit: countedAtOnce, Most: countedAtOnce,
			After: count.cursor,
		}, p.then()...)
		if err != nil {
			return err
		}
		count.add(found)
	}
	data.Counting, data.Read, data.Step = !count.done, count.read, span(count.step)
	all := slices.SortedFunc(maps.Values(count.groups), func(a, b *wire.DeadGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	data.More = int64(max(len(all)-groupsShown, 0))
	last := now.UnixMilli() / count.step.Milliseconds()
	for _, g := range all[:min(len(all), groupsShown)] {
		values := make([]float64, groupSteps)
		for _, c := range g.Counts {
			back := last - int64(c.Start)/count.step.Milliseconds()
			if i := groupSteps - 1 - back; i >= 0 && i < groupSteps {
				values[i] += float64(c.Count)
			}
		}
		query := params(&filter)
		query["fingerprint"] = g.Fingerprint
		data.Grouped += g.Count
		data.Groups = append(data.Groups, groupRow{
			*g, sparks(plural(g.Count, "message")+", by "+data.Step, values), query,
		})
	}
	return nil
}

// groupCount is how far dead letters are grouped. To read the errors of a million takes a minute:
// each look goes on from where the one before ended.
type groupCount struct {
	mu     sync.Mutex // held while errors are read
	groups map[string]*wire.DeadGroup
	step   time.Duration // of Counts
	read   int64         // dead letters
	cursor string
	done   bool
}

// add adds the groups of the next dead letters. Of more groups than are kept, those of one message
// are forgotten.
func (c *groupCount) add(found *wire.DeadGroups) {
	c.read += countedAtOnce
	c.cursor, c.done = found.NextCursor, found.NextCursor == ""
	for _, g := range found.Groups {
		known := c.groups[g.Fingerprint]
		if known == nil {
			if len(c.groups) == groupsKept {
				maps.DeleteFunc(c.groups, func(_ string, g *wire.DeadGroup) bool { return g.Count == 1 })
			}
			if len(c.groups) < groupsKept {
				g.Error, g.Pattern = clip(1000, g.Error), clip(300, g.Pattern)
				c.groups[g.Fingerprint] = &g
			}
			continue
		}
		known.Count += g.Count
		known.LastFailedAt = g.LastFailedAt
		for _, n := range g.Counts {
			if i := len(known.Counts) - 1; i >= 0 && known.Counts[i].Start == n.Start {
				known.Counts[i].Count += n.Count
			} else {
				known.Counts = append(known.Counts, n)
			}
		}
	}
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
