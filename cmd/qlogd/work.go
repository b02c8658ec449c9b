package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var leaseCommand = remote("lease", func(c request, f *struct {
	Max         int `default:"1"`
	Wait, Lease time.Duration
	Worker      string
	Kind        []string
	Ack, All    bool
}) error {
	if f.Wait < 0 || f.Wait > time.Minute {
		return usagef("--wait must be from 0 to 1m")
	}
	if f.All && !f.Ack {
		return usagef("--all needs --ack: without it every lease would run out")
	}
	verb := "leased"
	if f.Ack {
		verb = "leased and acked"
	}
	for total := 0; ; {
		got, err := c.LeaseFrom(c.ctx, c.args, client.LeaseOptions{Max: f.Max, Wait: f.Wait,
			Lease: f.Lease, Worker: f.Worker, Kinds: f.Kind})
		if err == nil && len(got) > 0 {
			err = list(c.app, got, nil, "message,lease,key,attempt,until,payload",
				func(m *wire.LeasedMessage) []any {
					payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
					return []any{m.ID, m.LeaseID, m.Key, m.Attempt, c.when(m.LeaseExpiresAt),
						short(payload, 60)}
				})
		}
		if err == nil && f.Ack {
			err = ackAll(c.ctx, c.Client, anyQueue, got)
		}
		if err != nil {
			return err
		}
		total += len(got)
		if !f.All || len(got) == 0 {
			c.note("%s %s", messages(total), verb)
			return nil
		}
	}
}, func(_ *app, cmd *cobra.Command) {
	setDefault(cmd, "worker", hostname())
})

// ackAll acks leased messages.
func ackAll(ctx context.Context, c *client.Client, queue string, got []wire.LeasedMessage) error {
	leases := make([]string, len(got))
	for i := range got {
		leases[i] = got[i].LeaseID
	}
	if len(leases) == 0 {
		return nil
	}
	results, err := c.Ack(ctx, queue, leases...)
	return cmp.Or(err, lost(results, "lost before the ack"))
}

// anyQueue is in the place of a queue where leases may be of any.
const anyQueue = ""

// lost returns an error if leases were rejected.
func lost(results []wire.SettleResult, what string) error {
	n := 0
	for _, r := range results {
		if r.Status == "rejected" {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return errors.New(plural(n, "lease was", "leases were") + " " + what)
}

// settle returns a command that settles leases of any queues.
func settle[F any](name string,
	all func(c request, leases []string, f *F) ([]wire.SettleResult, error)) command {
	return remote(name, func(c request, f *F) error {
		leases := c.args
		if len(leases) == 1 && leases[0] == "-" {
			leases = nil
			for s := bufio.NewScanner(c.stdin); s.Scan(); {
				if id := strings.TrimSpace(s.Text()); id != "" {
					leases = append(leases, id)
				}
			}
		}
		var results []wire.SettleResult
		for some := range slices.Chunk(leases, maxLeases) {
			got, err := all(c, some, f)
			if err != nil {
				if len(results) > 0 {
					_ = c.settled(results)
				}
				return err
			}
			results = append(results, got...)
		}
		return c.settled(results)
	})
}

// maxLeases bounds the leases of a call.
const maxLeases = 1000

// itemsOf returns the items of a settle call, one for each lease.
func itemsOf[T any](leases []string, item func(lease string) T) []T {
	out := make([]T, len(leases))
	for i, id := range leases {
		out[i] = item(id)
	}
	return out
}

// timeFlag returns the value of a flag that is a time, nil where it is not given.
func timeFlag(name, value string) (*wire.Time, error) {
	if value == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil, usagef("--%s must be an RFC 3339 time, not %.64q", name, value)
	}
	return new(wire.TimeOf(t)), nil
}

// settleCommands settle leases.
var settleCommands = []command{
	settle("ack", func(c request, leases []string, f *struct{ Result string },
	) ([]wire.SettleResult, error) {
		r := wire.AckRequest{LeaseIDs: leases, Result: jsontext.Value(f.Result)}
		if f.Result == "" {
			r.Result = nil
		} else if !r.Result.IsValid() {
			return nil, usagef("--result is not JSON: %.64q", f.Result)
		}
		return c.AckAll(c.ctx, anyQueue, r)
	}),
	settle("retry", func(c request, leases []string, f *struct {
		Error string
		Delay *time.Duration
		At    string
	}) ([]wire.SettleResult, error) {
		at, err := timeFlag("at", f.At)
		if err != nil {
			return nil, err
		}
		return c.Retry(c.ctx, anyQueue, itemsOf(leases, func(id string) wire.RetryItem {
			r := wire.RetryItem{LeaseID: id, Error: f.Error, RetryAt: at}
			if f.Delay != nil {
				r.DelayMS = new(f.Delay.Milliseconds())
			}
			return r
		}))
	}),
	settle("dead-letter", func(c request, leases []string, f *struct{ Error string },
	) ([]wire.SettleResult, error) {
		return c.DeadLetter(c.ctx, anyQueue, itemsOf(leases, func(id string) wire.DeadLetterItem {
			return wire.DeadLetterItem{LeaseID: id, Error: f.Error}
		}))
	}),
	settle("extend", func(c request, leases []string, f *struct{ Lease time.Duration },
	) ([]wire.SettleResult, error) {
		return c.Extend(c.ctx, anyQueue, itemsOf(leases, func(id string) wire.ExtendItem {
			return wire.ExtendItem{LeaseID: id, LeaseMS: f.Lease.Milliseconds()}
		}))
	}),
	settle("release", func(c request, leases []string, f *struct{ Delay time.Duration },
	) ([]wire.SettleResult, error) {
		return c.Snooze(c.ctx, anyQueue, itemsOf(leases, func(id string) wire.ReleaseItem {
			return wire.ReleaseItem{LeaseID: id, DelayMS: f.Delay.Milliseconds()}
		}))
	}),
}

// settled prints settle results, and fails where one was rejected.
func (a *app) settled(results []wire.SettleResult) error {
	row := func(r *wire.SettleResult) []any {
		until := cmp.Or(r.NextAt, r.LeaseExpiresAt, r.LeasedUntil)
		return []any{r.LeaseID, r.Status, r.Code, a.when(until), r.State, r.Worker}
	}
	err := list(a, results, nil, "lease,status,code,until,now,worker", row)
	return cmp.Or(err, lost(results, "lost"))
}
