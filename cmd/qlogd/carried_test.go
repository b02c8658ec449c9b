package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// Messages that leave with their queue or key do so in an entry of their own; once the
// call is answered, their history shows it all the same.
func TestBulkChangesAreInTheHistoryOnceAnswered(t *testing.T) {
	n, c := testNode(t, filepath.Join(t.TempDir(), "data"))
	defer stopNode(t, n)
	ctx := t.Context()
	last := func(id string) string {
		t.Helper()
		events := must[[]wire.Event](t)(c.History(ctx, id))
		return fmt.Sprint(events[len(events)-1].Type, " ", events[len(events)-1].Reason)
	}
	for range 10 {
		if _, _, err := c.PutQueue(ctx, "q", wire.PolicyUpdate{}); err != nil {
			t.Fatal(err)
		}
		id := must[[]wire.Produced](t)(c.Produce(ctx, "q", client.JSON(1)))[0].ID
		if _, err := c.PurgeQueue(ctx, "q"); err != nil {
			t.Fatal(err)
		}
		if got := last(id); got != "discarded purged" {
			t.Fatal(got)
		}
		id = must[[]wire.Produced](t)(c.Produce(ctx, "q", client.JSON(1)))[0].ID
		if err := c.DeleteQueue(ctx, "q", true); err != nil {
			t.Fatal(err)
		}
		if got := last(id); got != "discarded queue_deleted" {
			t.Fatal(got)
		}
	}
	// And a key's others, that follow their dead one.
	policy := wire.PolicyUpdate{Ordering: wire.Some("per_key"), Delivery: wire.Opt[wire.DeliveryUpdate]{Set: true, Value: wire.DeliveryUpdate{
		OnDead: wire.Some("dead_letter_key"), DeadLetterQueue: wire.Some("auto"),
	}}}
	if _, _, err := c.PutQueue(ctx, "k", policy); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		m := client.JSON(1)
		m.Key = fmt.Sprint(i)
		second := must[[]wire.Produced](t)(c.Produce(ctx, "k", m, m))[1].ID
		held := must[[]wire.LeasedMessage](t)(c.Lease(ctx, "k", client.LeaseOptions{}))
		must[[]wire.SettleResult](t)(c.DeadLetter(ctx, "k", []wire.DeadLetterItem{{LeaseID: held[0].LeaseID}}))
		if got := last(second); got != "dead_lettered key_dead" {
			t.Fatal(got)
		}
	}
}
