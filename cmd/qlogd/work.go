package main

import (
	"bufio"
	"context"
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

func (a *app) leaseCmd() *cobra.Command {
	var (
		o        client.LeaseOptions
		ack, all bool
	)
	cmd := a.remote("lease QUEUE…", "Take messages to work on", `  qlogd lease jobs
  qlogd lease jobs --max 10 --wait 30s --lease 5m -o json
  qlogd lease jobs --ack --all -o json | jq .payload`, args(cobra.MinimumNArgs(1)),
		func(ctx context.Context, c *client.Client, queues []string) error {
			if o.Wait < 0 || o.Wait > time.Minute {
				return usagef("--wait must be from 0 to 1m")
			}
			if all && !ack {
				return usagef("--all needs --ack: without it every lease would run out")
			}
			verb := "leased"
			if ack {
				verb = "leased and acked"
			}
			for total := 0; ; {
				got, err := leaseFrom(ctx, c, queues, o)
				if err == nil {
					err = a.leased(got)
				}
				if err == nil && ack {
					err = ackAll(ctx, c, got)
				}
				if err != nil {
					return err
				}
				total += len(got)
				if !all || len(got) == 0 {
					if a.output != "json" {
						fmt.Fprintf(a.stderr, "%s %s\n", messages(total), verb)
					}
					return nil
				}
			}
		})
	cmd.Long = `Takes messages from a queue, or from several, tried in their order. Each is yours
until its lease runs out: settle it by its lease id (qlogd ack, retry, extend,
release, dead-letter), or let --ack do it as soon as it is printed.`
	host, err := os.Hostname()
	if err != nil {
		host = "qlogd-cli"
	}
	f := cmd.Flags()
	f.IntVar(&o.Max, "max", 1, "most messages, 1 to 1000")
	f.DurationVar(&o.Wait, "wait", 0, "how long to wait while there is nothing, at most 1m")
	f.DurationVar(&o.Lease, "lease", 0, "how long the lease is (default: the queue's policy)")
	f.StringVar(&o.Worker, "worker", host, "name of this worker, for people")
	f.StringSliceVar(&o.Kinds, "kind", nil, "only messages of these kinds")
	f.BoolVar(&ack, "ack", false, "ack each batch once it is printed")
	f.BoolVar(&all, "all", false, "with --ack: go on until nothing comes")
	return cmd
}

func leaseFrom(ctx context.Context, c *client.Client, queues []string, o client.LeaseOptions) ([]wire.LeasedMessage, error) {
	if len(queues) == 1 {
		return c.Lease(ctx, queues[0], o)
	}
	return c.LeaseFrom(ctx, queues, o)
}

func (a *app) leased(got []wire.LeasedMessage) error {
	if len(got) == 0 {
		return nil
	}
	return list(a, got, "message,lease,key,attempt,until,payload", func(m *wire.LeasedMessage) []any {
		payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
		return []any{m.ID, m.LeaseID, m.Key, m.Attempt, a.when(m.LeaseExpiresAt), short(payload, 60)}
	})
}

func ackAll(ctx context.Context, c *client.Client, got []wire.LeasedMessage) error {
	byQueue := map[string][]string{}
	for _, m := range got {
		byQueue[m.Queue] = append(byQueue[m.Queue], m.LeaseID)
	}
	lost := 0
	for queue, leases := range byQueue {
		results, err := c.Ack(ctx, queue, leases...)
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.Status == "rejected" {
				lost++
			}
		}
	}
	if lost > 0 {
		return errors.New(plural(lost, "lease was", "leases were") + " lost before the ack")
	}
	return nil
}

// settleCmd makes a command that settles leases one by one, so that neither
// queue nor batch need be known.
func (a *app) settleCmd(use, short, example string,
	one func(context.Context, *client.Client, string) (*wire.SettleResult, error)) *cobra.Command {
	cmd := a.remote(use+" LEASE_ID… | -", short, example, args(cobra.MinimumNArgs(1)),
		func(ctx context.Context, c *client.Client, leases []string) error {
			if len(leases) == 1 && leases[0] == "-" {
				leases = nil
				for s := bufio.NewScanner(a.stdin); s.Scan(); {
					if id := strings.TrimSpace(s.Text()); id != "" {
						leases = append(leases, id)
					}
				}
			}
			var results []wire.SettleResult
			for _, id := range leases {
				r, err := one(ctx, c, id)
				if errors.Is(err, client.ErrLeaseLost) {
					r, err = &wire.SettleResult{LeaseID: id, Status: "rejected", Code: "lease_lost"}, nil
				}
				if err != nil {
					if len(results) > 0 {
						_ = a.settled(results)
					}
					return err
				}
				results = append(results, *r)
			}
			return a.settled(results)
		})
	cmd.Long = short + ".\n\nTakes lease ids as arguments, or from stdin, one a line, with \"-\". Fails (1) where\n" +
		"a lease was lost."
	return cmd
}

// settled prints settle results, and fails where one was rejected.
func (a *app) settled(results []wire.SettleResult) error {
	lost := 0
	for _, r := range results {
		if r.Status == "rejected" {
			lost++
		}
	}
	err := list(a, results, "lease,status,code,until", func(r *wire.SettleResult) []any {
		until := r.NextAt
		if until == 0 {
			until = r.LeaseExpiresAt
		}
		return []any{r.LeaseID, r.Status, r.Code, a.when(until)}
	})
	if err == nil && lost > 0 {
		err = errors.New(plural(lost, "lease was", "leases were") + " lost")
	}
	return err
}

func (a *app) ackCmd() *cobra.Command {
	var result string
	cmd := a.settleCmd("ack", "End leases with success",
		"  qlogd ack 01J…\n  qlogd ack 01J… --result '{\"ok\":true}'\n"+
			"  qlogd lease jobs -o json | jq -r .lease_id | qlogd ack -",
		func(ctx context.Context, c *client.Client, id string) (*wire.SettleResult, error) {
			var r wire.AckOne
			if result != "" {
				r.Result = jsontext.Value(result)
				if !r.Result.IsValid() {
					return nil, usagef("--result is not JSON: %.64q", result)
				}
			}
			return c.AckOne(ctx, id, r)
		})
	cmd.Flags().StringVar(&result, "result", "", "JSON to keep for duplicates of the message")
	return cmd
}

func (a *app) retryCmd() *cobra.Command {
	var text string
	var delay time.Duration
	var cmd *cobra.Command
	cmd = a.settleCmd("retry", "Give messages back for another try",
		"  qlogd retry 01J… --error 'upstream answered 502'\n  qlogd retry 01J… --delay 10m",
		func(ctx context.Context, c *client.Client, id string) (*wire.SettleResult, error) {
			r := wire.RetryOne{Error: text}
			if cmd.Flags().Changed("delay") {
				ms := delay.Milliseconds()
				r.DelayMS = &ms
			}
			return c.RetryOne(ctx, id, r)
		})
	cmd.Flags().StringVar(&text, "error", "", "what went wrong")
	cmd.Flags().DurationVar(&delay, "delay", 0, "wait this long (default: the queue's backoff)")
	return cmd
}

func (a *app) deadLetterCmd() *cobra.Command {
	var text string
	cmd := a.settleCmd("dead-letter", "Give messages up", "  qlogd dead-letter 01J… --error 'no such customer'",
		func(ctx context.Context, c *client.Client, id string) (*wire.SettleResult, error) {
			return c.DeadLetterOne(ctx, id, wire.DeadLetterOne{Error: text})
		})
	cmd.Flags().StringVar(&text, "error", "", "what went wrong")
	return cmd
}

func (a *app) extendCmd() *cobra.Command {
	var lease time.Duration
	cmd := a.settleCmd("extend", "Let leases end later, counted from now", "  qlogd extend 01J… --lease 5m",
		func(ctx context.Context, c *client.Client, id string) (*wire.SettleResult, error) {
			return c.ExtendOne(ctx, id, wire.ExtendOne{LeaseMS: lease.Milliseconds()})
		})
	cmd.Flags().DurationVar(&lease, "lease", 0, "how long from now (default: the queue's policy)")
	return cmd
}

func (a *app) releaseCmd() *cobra.Command {
	return a.settleCmd("release", "Give messages back at once, without counting the attempt",
		"  qlogd release 01J…",
		func(ctx context.Context, c *client.Client, id string) (*wire.SettleResult, error) {
			return c.ReleaseOne(ctx, id)
		})
}
