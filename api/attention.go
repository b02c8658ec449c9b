package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
)

// DiskReserve is the free disk space, in bytes, below which a node accepts no messages.
const DiskReserve = 256 << 20

// Thresholds of attention items.
const (
	maxAttention = 1000
	nobodyForMS  = 60_000
	lagMS        = 10_000
	lagEntries   = 10_000
	manyExpiries = 3 // of one message
)

// attention answers GET /v1/attention?consistency=. Without a leader it answers from what this node
// knows.
func (s *Server) attention(q *request) error {
	q.read("consistency").current()
	if q.err != nil {
		return q.err
	}
	items := slices.Concat(s.queuesNeeding(q), s.nodesNeeding(q.Context()),
		s.webhooksNeeding(q))
	if q.err != nil {
		return q.err
	}
	slices.SortFunc(items, func(a, b wire.AttentionItem) int { // there may be 10,000
		if a.Severity != b.Severity {
			return a.Severity - b.Severity
		}
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(deref(a.Queue), deref(b.Queue)),
			strings.Compare(deref(a.Node), deref(b.Node)), strings.Compare(a.Kind, b.Kind))
	})
	return q.answer(http.StatusOK, &wire.Attention{Items: items[:min(len(items), maxAttention)]})
}

// current waits until this node's state is current, for at most othersWithin. If the state is stale
// after that, or the request accepts a stale answer, it sets the age header.
func (q *request) current() {
	stale := q.stale()
	if q.err != nil {
		return
	}
	if !stale {
		ctx, cancel := context.WithTimeout(q.Context(), othersWithin)
		defer cancel()
		if stale = q.s.deps.Node.Barrier(ctx) != nil; !stale {
			_ = q.s.deps.Models.Wait(ctx, q.s.deps.Log.Head())
		}
	}
	if stale {
		q.setAge()
	}
	q.setAppliedIndex()
}

// queuesNeeding returns the attention items of the queues that the token may read.
func (s *Server) queuesNeeding(q *request) (items []wire.AttentionItem) {
	now, created := s.clock(s.deps.State), map[string]int64{}
	queues, deadLetters := s.deps.State.Queues(), map[string]bool{}
	for i := range queues {
		deadLetters[queues[i].Policy.DeadLetterQueue] = true
	}
	items = make([]wire.AttentionItem, 0, len(queues))
	for i := range queues {
		v := &queues[i]
		if a, ok := s.deps.State.Attention(v.Name); ok && q.sees(v.Name) {
			created[v.Name] = v.CreatedAt
			if deadLetters[v.Name] && v.LeasedAt == 0 {
				a.Leasable = 0 // they wait for an operator, not for workers
			}
			items = queueNeeds(items, &a, now)
		}
	}
	return append(items, s.eventsNeeding(q, now, created)...)
}

// eventsNeeding returns the attention items that follow from the latest events of queues. created
// has each queue's creation time: older events belong to an earlier queue of the same name.
func (s *Server) eventsNeeding(
	q *request, now int64, created map[string]int64,
) (items []wire.AttentionItem) {
	dying := get(q, func() (map[string]store.Counted, error) { return s.deps.Models.Dying(now) })
	for queue, c := range dying {
		if at, ok := created[queue]; ok && c.Last >= at {
			items = append(items, wire.AttentionItem{
				Kind: "dead_letters_growing", Severity: 2, Queue: &queue, Since: wire.Time(c.First),
				Count: int64(c.Count), Detail: "messages died within the last 10 minutes",
			})
		}
	}
	expiring := get(q, func() (map[string]*store.Expiring, error) {
		return s.deps.Models.Expiring(func(queue string) int64 {
			if at, ok := created[queue]; ok {
				return at
			}
			return math.MaxInt64
		})
	})
	for queue, x := range expiring {
		items = append(items, s.expiring(queue, x)...)
	}
	return items
}

// expiring returns the attention items for a queue's expired leases: one if many of the latest
// leases expired, and one for the live message with the most expiries.
func (s *Server) expiring(queue string, x *store.Expiring) (items []wire.AttentionItem) {
	add := func(c store.Counted, format string, args ...any) *wire.AttentionItem {
		items = append(items, wire.AttentionItem{
			Kind: "leases_expiring", Severity: 2, Queue: &queue, Since: wire.Time(c.First),
			Count: int64(c.Count), Detail: fmt.Sprintf(format, args...),
		})
		return &items[len(items)-1]
	}
	if x.Lately.Count >= store.ExpiringLeases/10 {
		add(x.Lately, "leases expired while the last %d were given", store.ExpiringLeases)
	}
	var worst event.ID
	messages := 0
	for id, c := range x.Messages {
		if c.Count < manyExpiries {
			continue
		}
		if m, live := s.deps.State.Message(id); !live || m.Queue != queue || !m.State.Live() {
			continue
		}
		messages++
		if most := x.Messages[worst].Count; c.Count > most || c.Count == most && id.Compare(worst) < 0 {
			worst = id
		}
	}
	if messages > 0 {
		add(x.Messages[worst], "leases of this message expired; messages with %d or more such: %d",
			manyExpiries, messages).MessageID = new(worst.String())
	}
	return items
}

// queueNeeds adds the attention items that follow from a queue's state.
func queueNeeds(
	items []wire.AttentionItem, v *event.AttentionView, now int64,
) []wire.AttentionItem {
	add := func(kind string, severity int, since, count int64, format string, args ...any) {
		items = append(items, wire.AttentionItem{
			Kind: kind, Severity: severity, Queue: new(v.Name), Since: wire.Time(since), Count: count,
			Detail: fmt.Sprintf(format, args...),
		})
	}
	n := v.Stats.Messages()
	limit := func(name string, has, most int64) {
		switch {
		case most == 0:
		case has >= most:
			add("full", 1, v.NewestAt, n, "%d of %d, the limit of retention.%s", has, most, name)
		case has*10 >= most*9:
			add("almost_full", 2, v.NewestAt, n, "%d of %d, the limit of retention.%s", has, most, name)
		}
	}
	limit("max_depth", n, v.Policy.MaxDepth)
	limit("max_bytes", v.Stats.Bytes, v.Policy.MaxBytes)
	if v.HeldKeys > 0 {
		add("key_held", 1, event.ClockOf(v.HeldBy), v.HeldKeys,
			"keys are blocked by dead messages (on_dead: hold_key) until these are replayed or purged")
		held := &items[len(items)-1]
		held.Key, held.MessageID = new(v.HeldKey), new(v.HeldBy.String())
	}
	if v.Leasable > 0 && now-v.LeasableSince >= nobodyForMS {
		add("nobody_leasing", 2, v.LeasableSince, v.Leasable,
			"messages could be leased, and nobody does")
	}
	if v.LastAttempt > 0 {
		add("last_attempt", 3, v.LastAttemptSince, v.LastAttempt,
			"messages that failed have one of %d attempts left", v.Policy.MaxAttempts)
	}
	return items
}

// nodesNeeding returns the attention items of the cluster's nodes, as far as this one knows: nodes
// exchange their status once a second. Every token that may see the cluster may see these.
func (s *Server) nodesNeeding(ctx context.Context) (items []wire.AttentionItem) {
	refresh, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	s.deps.Node.RefreshMembers(refresh)
	members := s.deps.Node.Members()
	applied := uint64(0)
	for _, m := range members {
		applied = max(applied, m.Status.Applied)
	}
	for _, m := range members {
		add := func(kind string, severity int, since int64, count int, format string, args ...any) {
			items = append(items, wire.AttentionItem{
				Kind: kind, Severity: severity, Node: &m.ID, Since: wire.Time(since),
				Count: int64(count), Detail: fmt.Sprintf(format, args...),
			})
		}
		if all := m.Status.Health.Damaged; len(all) > 0 {
			add("node_damaged", 1, all[0].Since, len(all), "%s: %s", all[0].File, all[0].Detail)
		}
		if by := m.Status.Unconfirmed; len(by) > 0 {
			add("node_unconfirmed", 2, 0, len(by), "it was admitted while these were silent: %s",
				strings.Join(by, ", "))
		}
		if m.Differs {
			add("node_differs", 1, 0, 1, "its log or state differs from that of other nodes")
		}
		h := &m.Status.Health
		used, limit := h.SizeBytes-h.FreeBytes, h.SizeBytes-min(h.SizeBytes, DiskReserve)
		switch {
		case m.Status.Full:
			add("full", 1, 0, 1, "its disk is nearly full, and takes no messages")
		case limit > 0 && used >= limit/10*9:
			add("almost_full", 2, 0, 1, "%s of its disk is used; from %s on it takes no messages",
				humanize.IBytes(used), humanize.IBytes(limit))
		}
		switch behind, since := s.lag(ctx, &m, applied); {
		case behind == 0:
		case m.Seen.IsZero():
			add("node_lagging", 2, 0, 0, "it has not answered since node %s started",
				s.deps.Node.Status().NodeID)
		case behind >= lagEntries || since > 0 && s.deps.Node.Clock()-since >= lagMS:
			add("node_lagging", 2, since, int(behind), "it is %d entries behind", behind)
		}
	}
	return items
}

// lag returns how many entries a node is behind, and since when: the time of the first entry that
// it has not applied, 0 if unknown.
func (s *Server) lag(ctx context.Context, m *raft.MemberStatus, applied uint64) (
	entries uint64, since int64) {
	if m.Seen.IsZero() && (m.Incarnation == "" || time.Since(s.started) < lagMS*time.Millisecond) {
		return 0, 0 // it never joined, or had no time to answer
	}
	if entries = applied - m.Status.Applied; entries == 0 {
		return 0, 0
	}
	if age, known := s.deps.Node.Age(); known && m.ID == s.deps.Node.Status().NodeID {
		return entries, s.deps.Node.Clock() - age.Milliseconds()
	}
	for b, err := range s.deps.Log.Blocks(ctx, m.Status.Applied+1, math.MaxUint64, event.TypeNone) {
		if err == nil {
			since = b.Time
		}
		break
	}
	return entries, since
}
