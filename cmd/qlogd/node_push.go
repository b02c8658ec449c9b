package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/push"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/webhook"
)

// pushActor is who asks, in events, where the cluster delivers by itself.
const pushActor = "push"

// newPush makes what delivers for queues with push.
func (e *engine) newPush(n *node, registry *prometheus.Registry) *push.Engine {
	d := push.Deps{
		Leads: e.replica.Leader, Barrier: e.replica.Barrier, Queues: e.machine.Queues,
		Lease: func(ctx context.Context, lease *event.Lease, wait time.Duration) ([]event.LeasedMessage, error) {
			return e.api.LeaseHere(ctx, &event.Command{Actor: pushActor, Lease: lease}, wait)
		},
		Settle: func(ctx context.Context, item event.SettleItem, to string, answer *wire.NewMessage) (event.Settled, error) {
			return e.api.SettleHere(ctx, pushActor, item, to, answer)
		},
		Content: func(ref event.Ref) (*event.Content, error) {
			c, err := e.log.Content(ref)
			if errors.Is(err, eventlog.ErrErased) {
				return nil, nil
			}
			return c, err
		},
		Now: e.replica.Clock, Secrets: pushSecrets(n.hooked),
		Client: n.egress, MaxPayload: e.c.MaxPayloadBytes, Worker: "push@" + e.card.NodeID,
		Registry: registry, Logger: e.logger,
	}
	if e.card.PushOff() {
		d.Off = "this data directory goes on from a copy of the past (qlogd replay --into): push_off in its node.json says whether it delivers"
	}
	return push.New(d)
}

// keepForRaft is what is left of a stop's time when deliveries are given up: for
// their messages to be given back, and for Raft.
const keepForRaft = 3 * time.Second

// stopPush waits for the deliveries in hand as long as there is time.
func (e *engine) stopPush(ctx context.Context) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-keepForRaft))
		defer cancel()
	}
	e.push.Stop(ctx)
}

// pushed is the push engine as the api's.
type pushed struct{ *engine }

var _ api.Push = pushed{}

// Check implements api.Push.
func (p pushed) Check(v *wire.Push) error { return p.push.Check(v) }

// Reason implements api.Push.
func (p pushed) Reason(queue string) *wire.PushReason { return p.push.Reason(queue) }

// Unready implements api.Push.
func (p pushed) Unready() []string { return p.push.Unready() }

// pushSecrets finds secrets where webhooks have theirs.
func pushSecrets(hooked *webhook.Secrets) func(env, files []string) (secrets, missing []string) {
	return func(env, files []string) (secrets, missing []string) {
		where := &wire.VerifyHMAC{SecretEnv: env, SecretFile: files}
		secrets, err := hooked.Of(where)
		if err != nil {
			return nil, hooked.Missing(where)
		}
		return secrets, nil
	}
}
