package api

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/raft"
)

// What the nodes report of each other needs attention.
func TestNodesNeedAttention(t *testing.T) {
	h, m := onMachine(t)
	for range 3 { // entries 1, 3, 5 and marks
		h.do("PUT", "/v1/queues/q", `{}`)
		m.pass(time.Second)
	}
	m.pass(7 * time.Second)
	h.s.started = time.Now().Add(-time.Minute)
	node := func(id string, applied uint64, seen bool) raft.MemberStatus {
		n := raft.MemberStatus{Member: raft.Member{ID: id, Incarnation: "i"}}
		if n.Status.Applied = applied; seen {
			n.Seen = time.Now()
		}
		return n
	}
	nodes := map[string]raft.MemberStatus{}
	for _, n := range []raft.MemberStatus{
		node("lacks-1", 1, true), node("lacks-2", 3, true), node("level", 100, true), node("silent", 0, false),
		node("damaged", 100, true), node("unconfirmed", 100, true), node("differs", 100, true),
		node("full", 100, true), node("almost", 100, true), node("roomy", 100, true),
		node("ahead", 100, true),
	} {
		nodes[n.ID] = n
	}
	edit := func(id string, do func(*raft.MemberStatus)) {
		n := nodes[id]
		do(&n)
		nodes[id] = n
	}
	edit("damaged", func(n *raft.MemberStatus) {
		n.Status.Health.Damaged = []datadir.Damage{
			{File: "log/a.seg", Since: 1000, Detail: "rotten"}, {File: "log/b.seg", Since: 2000},
		}
	})
	edit("unconfirmed", func(n *raft.MemberStatus) { n.Status.Unconfirmed = []string{"n7"} })
	edit("differs", func(n *raft.MemberStatus) { n.Differs = true })
	disk := datadir.Health{SizeBytes: DiskReserve + 1000, FreeBytes: DiskReserve + 100}
	edit("full", func(n *raft.MemberStatus) { n.Status.Full, n.Status.Health = true, disk })
	edit("almost", func(n *raft.MemberStatus) { n.Status.Health = disk })
	disk.FreeBytes++
	edit("roomy", func(n *raft.MemberStatus) { n.Status.Health = disk })
	h.cluster.nodes = nodes

	kinds := func() string {
		var out []string
		for _, v := range h.do("GET", "/v1/attention", "").want(200).get("items").([]any) {
			item := v.(map[string]any)
			out = append(out, item["kind"].(string)+" "+item["node"].(string))
		}
		slices.Sort(out)
		return strings.Join(out, "; ")
	}
	others := []string{"almost_full almost", "full full", "node_damaged damaged", "node_differs differs",
		"node_lagging silent", "node_unconfirmed unconfirmed"}
	sorted := func(more ...string) string {
		return strings.Join(slices.Sorted(slices.Values(append(more, others...))), "; ")
	}
	assert.Equal(t, kinds(), sorted()) // what lacks-1 lacks is 10 s old only in a second
	m.pass(time.Second)
	assert.Equal(t, kinds(), sorted("node_lagging lacks-1"))
	m.pass(time.Second)
	assert.Equal(t, kinds(), sorted("node_lagging lacks-1", "node_lagging lacks-2"))

	h.cluster.nodes = map[string]raft.MemberStatus{
		"many": node("many", 5, true), "few": node("few", 7, true), "n1": node("n1", 5+lagEntries, true),
	}
	assert.Equal(t, kinds(), "node_lagging many")
	h.cluster.nodes = map[string]raft.MemberStatus{"silent": node("silent", 0, false), "n1": node("n1", 100, true)}
	h.s.started = time.Now() // it has had no time to answer
	assert.Equal(t, kinds(), "", "a node that has just started waits for answers")
}

// Refused requests to a webhook are counted on all nodes, if they are not old.
func TestRefusedOnAllNodes(t *testing.T) {
	h := setup(t)
	for i := range 2 * keepDeliveries { // as long ago as the webhook's creation
		h.s.deliveries.add("w", wire.WebhookDelivery{At: wire.Time(i + 1), Status: 401})
	}
	h.do("PUT", "/v1/queues/q", `{}`).want(201)
	h.do("PUT", "/v1/webhooks/w", `{"queue":"q"}`).want(201)
	now := wire.TimeOf(time.Now())
	refused := func(n int, age time.Duration) (times []wire.Time) {
		for range n {
			times = append(times, now-wire.Time(age.Milliseconds()))
		}
		return times
	}
	var theirs map[string][]wire.Time
	h.node.askOthers = func(_ context.Context, name string, _ []byte) [][]byte {
		switch name {
		case askRefused:
			b, _ := wire.Marshal(theirs)
			return [][]byte{b, b}
		case askDeliveries:
			b, _ := wire.Marshal([]wire.WebhookDelivery{{At: now + 1000, Node: "n2", Status: 202}})
			return [][]byte{b}
		}
		t.Errorf("asked %s", name)
		return nil
	}
	for range 2 {
		h.s.deliveries.add("w", wire.WebhookDelivery{At: now + 1, Node: "n1", Status: 403})
	}
	h.s.deliveries.add("w", wire.WebhookDelivery{At: now + 2, Node: "n1", Status: 202})
	h.s.deliveries.add("w", wire.WebhookDelivery{At: now + 2, Node: "n1", Status: statusClientGone})
	v, _ := h.Webhook("w")
	theirs = map[string][]wire.Time{"w": refused(3, 0), "gone": refused(100, 0)}
	theirs["w"] = append(theirs["w"], wire.Time(v.CreatedAt)-1)
	assert.True(t, h.do("GET", "/v1/attention", "").want(200).get("items.0") == nil,
		"8 on three nodes")
	theirs["w"] = append(theirs["w"], now+3)
	a := h.do("GET", "/v1/attention", "").want(200)
	assert.Equal(t, a.str("items.0.kind"), "webhook_refused")
	assert.Equal(t, a.get("items.0.count"), any(10.0))

	all := h.do("GET", "/v1/webhooks/w/deliveries", "").want(200)
	assert.Equal(t, all.str("0.node"), "n2", "the newest")
	assert.Equal(t, all.get("1.status"), any(float64(statusClientGone)))
	assert.Equal(t, len(all.get(".").([]any)), 5, "those of this webhook, not of an earlier one")
}

// A message that is due and not ready yet, as without a leader, is late.
func TestScheduledLag(t *testing.T) {
	h, m := onMachine(t)
	h.do("PUT", "/v1/queues/q", `{}`).want(201)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"delay_ms":1000}]}`).want(201)
	lag := func(want string) {
		t.Helper()
		b := h.do("GET", "/metrics", "").want(200).Body.String()
		assert.True(t, strings.Contains(b, "\nqlogd_scheduled_lag_seconds "+want+"\n"), "not %s", want)
	}
	lag("0")
	m.mu.Lock()
	m.now += 3500
	m.mu.Unlock()
	lag("2.5")
	m.pass(0)
	lag("0")
}
