package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
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
			err = ackAll(c, got)
		}
		if err != nil {
			return err
		}
		total += len(got)
		if !f.All || len(got) == 0 {
			if c.output != "json" {
				fmt.Fprintf(c.stderr, "%s %s\n", messages(total), verb)
			}
			return nil
		}
	}
}, func(_ *app, cmd *cobra.Command) {
	host, err := os.Hostname()
	if err != nil {
		host = "qlogd-cli"
	}
	setDefault(cmd, "worker", host)
})

// ackAll acks leased messages.
func ackAll(c request, got []wire.LeasedMessage) error {
	byQueue := map[string][]string{}
	for _, m := range got {
		byQueue[m.Queue] = append(byQueue[m.Queue], m.LeaseID)
	}
	var all []wire.SettleResult
	for queue, leases := range byQueue {
		results, err := c.Ack(c.ctx, queue, leases...)
		if err != nil {
			return err
		}
		all = append(all, results...)
	}
	return lost(all, "lost before the ack")
}

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

// settle returns a command that settles leases one by one, so that neither queue nor
// batch need be known.
func settle[F any](name string,
	one func(c request, lease string, f *F) (*wire.SettleResult, error)) command {
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
		for _, id := range leases {
			r, err := one(c, id, f)
			if errors.Is(err, client.ErrLeaseLost) {
				r = &wire.SettleResult{LeaseID: id, Status: "rejected", Code: "lease_lost"}
				err = nil
			}
			if err != nil {
				if len(results) > 0 {
					_ = c.settled(results)
				}
				return err
			}
			results = append(results, *r)
		}
		return c.settled(results)
	})
}

// settleCommands settle leases.
var settleCommands = []command{
	settle("ack", func(c request, id string, f *struct{ Result string },
	) (*wire.SettleResult, error) {
		r := wire.AckOne{Result: jsontext.Value(f.Result)}
		if f.Result == "" {
			r.Result = nil
		} else if !r.Result.IsValid() {
			return nil, usagef("--result is not JSON: %.64q", f.Result)
		}
		return c.AckOne(c.ctx, id, r)
	}),
	settle("retry", func(c request, id string, f *struct {
		Error string
		Delay *time.Duration
	}) (*wire.SettleResult, error) {
		r := wire.RetryOne{Error: f.Error}
		if f.Delay != nil {
			r.DelayMS = new(f.Delay.Milliseconds())
		}
		return c.RetryOne(c.ctx, id, r)
	}),
	settle("dead-letter", func(c request, id string, f *struct{ Error string },
	) (*wire.SettleResult, error) {
		return c.DeadLetterOne(c.ctx, id, wire.DeadLetterOne{Error: f.Error})
	}),
	settle("extend", func(c request, id string, f *struct{ Lease time.Duration },
	) (*wire.SettleResult, error) {
		return c.ExtendOne(c.ctx, id, wire.ExtendOne{LeaseMS: f.Lease.Milliseconds()})
	}),
	settle("release", func(c request, id string, _ *none) (*wire.SettleResult, error) {
		return c.ReleaseOne(c.ctx, id)
	}),
}

// settled prints settle results, and fails where one was rejected.
func (a *app) settled(results []wire.SettleResult) error {
	err := list(a, results, nil, "lease,status,code,until", func(r *wire.SettleResult) []any {
		return []any{r.LeaseID, r.Status, r.Code, a.when(cmp.Or(r.NextAt, r.LeaseExpiresAt))}
	})
	return cmp.Or(err, lost(results, "lost"))
}
