package chromium

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// shop is a data set like that of a shop, and what its pages are about.
type shop struct {
	message, task string
	before        string   // an instant between produced and settled
	paths         []string // of all pages
}

// seed fills a node.
func seed(t *testing.T, n *cluster.Node, opts ...client.Option) *shop {
	t.Helper()
	c, ctx := n.Client(opts...), t.Context()
	auto := func(d wire.DeliveryUpdate) wire.Opt[wire.DeliveryUpdate] {
		d.DeadLetterQueue = wire.Some("auto")
		return wire.Some(d)
	}
	for name, p := range map[string]wire.PolicyUpdate{
		"payments": {Ordering: wire.Some("per_key"), Description: wire.Some("Card charges, in order per customer"),
			Delivery: auto(wire.DeliveryUpdate{MaxAttempts: wire.Some[int64](3)})},
		"emails":           {Delivery: auto(wire.DeliveryUpdate{})},
		"invoices.render":  {},
		"thumbnails":       {},
		"webhooks.inbound": {},
		"orders.created": {Ordering: wire.Some("per_key"), Delivery: auto(wire.DeliveryUpdate{
			OnDead: wire.Some("hold_key"), MaxAttempts: wire.Some[int64](1)})},
		"search.index": {Retention: wire.Some(wire.RetentionUpdate{MaxDepth: wire.Some[int64](200)})},
	} {
		_, _, err := c.PutQueue(ctx, name, p)
		require.NoError(t, err)
	}
	produce := func(queue, kind string, n, keys int, payload func(i int) any) []wire.Produced {
		var list []wire.NewMessage
		for i := range n {
			m := client.JSON(payload(i))
			if m.Kind = kind; keys > 0 {
				m.Key = fmt.Sprintf("customer-%d", i%keys)
			}
			m.Headers = map[string]string{"trace": fmt.Sprintf("t-%d", 4000+i), "source": "checkout"}
			list = append(list, m)
		}
		done, err := c.Produce(ctx, queue, list...)
		require.NoError(t, err)
		return done
	}
	charges := produce("payments", "charge", 120, 17, func(i int) any {
		return map[string]any{"order_id": 9000 + i, "amount": float64(i*37%500) + .9, "currency": "EUR",
			"customer": map[string]any{"id": fmt.Sprintf("cus_%d", i%17), "name": "Ada Lovelace"}}
	})
	produce("emails", "receipt", 60, 0, func(i int) any {
		return map[string]any{"to": fmt.Sprintf("user%d@example.com", i), "template": "receipt"}
	})
	produce("orders.created", "created", 30, 5, func(i int) any { return map[string]any{"id": i} })
	produce("search.index", "", 185, 0, func(i int) any { return map[string]any{"doc": i} })
	produce("thumbnails", "resize", 25, 0, func(i int) any { return map[string]any{"image": i, "width": 320} })

	head, err := c.LogHead(ctx)
	require.NoError(t, err)
	settle := func(queue, worker string, max int, do func(m *wire.LeasedMessage) error) {
		leased, err := c.Lease(ctx, queue, client.LeaseOptions{Max: max, Worker: worker})
		require.NoError(t, err)
		for i := range leased {
			require.NoError(t, do(&leased[i]))
		}
	}
	dies := func(why string) func(m *wire.LeasedMessage) error {
		return func(m *wire.LeasedMessage) error {
			_, err := c.DeadLetterOne(ctx, m.LeaseID, wire.DeadLetterOne{Error: why})
			return err
		}
	}
	acks := func(m *wire.LeasedMessage) error { _, err := c.AckOne(ctx, m.LeaseID, wire.AckOne{}); return err }
	settle("payments", "billing-1", 6, acks)
	for _, why := range []string{"upstream answered 502 from bank-3", "upstream answered 502 from bank-7",
		"card 4242 declined: insufficient_funds"} {
		settle("payments", "billing-2", 12, dies(why))
	}
	settle("orders.created", "shop-1", 2, dies("duplicate key value violates unique constraint orders_pkey"))
	settle("emails", "mailer-1", 20, acks)
	settle("emails", "mailer-2", 6, func(*wire.LeasedMessage) error { return nil })
	require.NoError(t, c.PauseQueue(ctx, "thumbnails", client.Reason("the image store is being moved")))
	_, err = c.UpdateQueue(ctx, "payments", wire.PolicyUpdate{Delivery: wire.Some(wire.DeliveryUpdate{
		MaxAttempts: wire.Some[int64](5)})})
	require.NoError(t, err)

	_, _, err = c.PutWebhook(ctx, "github", wire.WebhookDefinition{
		Queue: "webhooks.inbound", Filter: "payload.action == 'opened'", Key: "string(payload.issue)",
		AllowIPs: []string{"127.0.0.0/8"},
		MapTo:    &wire.MapTo{Input: map[string]string{"title": "'[GitHub] ' + payload.title"}},
	})
	require.NoError(t, err)
	for _, body := range []string{`{"action":"opened","issue":81,"title":"Retry by filter"}`,
		`{"action":"closed","issue":80,"title":"Old"}`, `{"action":`,
		`{"action":"opened","issue":82,"title":"Dark theme"}`} {
		_, _, err := c.Raw(ctx, http.MethodPost, "/hook/github",
			http.Header{"Content-Type": {"application/json"}}, []byte(body))
		require.NoError(t, err)
	}
	_, task, err := c.Replay(ctx, "payments", wire.ReplayRequest{
		Filter: &wire.DeadFilter{Error: "502"}, RatePerSecond: new(int64(1)),
		Reason: "bank-3 and bank-7 answer again",
	})
	require.NoError(t, err)
	s := &shop{message: charges[6].ID, task: task.ID,
		before: fmt.Sprintf("index:%d", head.Index)}
	s.paths = []string{"", "queues/payments", "queues/payments/policy", "queues/emails/workers",
		"queues/payments/produce", "queues/payments/pause", "queues/payments/purge",
		"messages/" + s.message, "dead", "queues/payments/dead", "queues/payments/dead/replay", "queues/emails/undo", "attention",
		"tasks", "tasks/" + s.task, "webhooks", "webhooks/github", "cluster", "cluster/transfer",
		"past/difference?from=start&to=now", "past/difference?from=start&to=now&queue=emails",
		"?at=" + time.Now().UTC().Format(wire.TimeFormat)}
	return s
}
