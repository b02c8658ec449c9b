package api

import (
	"context"
	"fmt"
	"slices"
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
	node := func(id string, applied uint64, edit ...func(*raft.MemberStatus)) raft.MemberStatus {
		n := raft.MemberStatus{Member: raft.Member{ID: id, Incarnation: "i"}, Seen: time.Now()}
		n.Status.Applied = applied
		for _, e := range edit {
			e(&n)
		}
		return n
	}
	unseen := func(n *raft.MemberStatus) { n.Seen = time.Time{} }
	disk := func(free uint64, full bool) func(*raft.MemberStatus) {
		return func(n *raft.MemberStatus) {
			n.Status.Full = full
			n.Status.Health = datadir.Health{
				SizeBytes: DiskReserve + 1000, FreeBytes: DiskReserve + free,
			}
		}
	}
	// need fails unless just these nodes of the cluster need attention, for these reasons.
	need := func(nodes []raft.MemberStatus, want ...string) {
		t.Helper()
		h.cluster.nodes = map[string]raft.MemberStatus{}
		for _, n := range nodes {
			h.cluster.nodes[n.ID] = n
		}
		var got []string
		for _, v := range h.do("GET", "/v1/attention", "").want(200).get("items").([]any) {
			got = append(got, fmt.Sprint(memberOf(v, "kind"), " ", memberOf(v, "node")))
		}
		slices.Sort(got)
		slices.Sort(want)
		assert.EqualSlices(t, got, want)
	}
	all := []raft.MemberStatus{
		node("lacks-1", 1), node("lacks-2", 3), node("level", 100), node("ahead", 100),
		node("silent", 0, unseen), node("full", 100, disk(100, true)),
		node("almost", 100, disk(100, false)), node("roomy", 100, disk(101, false)),
		node("damaged", 100, func(n *raft.MemberStatus) {
			n.Status.Health.Damaged = []datadir.Damage{
				{File: "log/a.seg", Since: 1000, Detail: "rotten"},
				{File: "log/b.seg", Since: 2000},
			}
		}),
		node("unconfirmed", 100, func(n *raft.MemberStatus) {
			n.Status.Unconfirmed = []string{"n7"}
		}),
		node("differs", 100, func(n *raft.MemberStatus) { n.Differs = true }),
	}
	want := []string{"almost_full almost", "full full", "node_damaged damaged",
		"node_differs differs", "node_lagging silent", "node_unconfirmed unconfirmed"}
	need(all, slices.Clone(want)...) // what lacks-1 lacks is 10 s old only in a second
	m.pass(time.Second)
	want = append(want, "node_lagging lacks-1")
	need(all, slices.Clone(want)...)
	m.pass(time.Second)
	need(all, append(want, "node_lagging lacks-2")...)

	need([]raft.MemberStatus{node("many", 5), node("few", 7), node("n1", 5+lagEntries)},
		"node_lagging many")
	h.s.started = time.Now() // a node that has just started waits for answers
	need([]raft.MemberStatus{node("silent", 0, unseen), node("n1", 100)})
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
