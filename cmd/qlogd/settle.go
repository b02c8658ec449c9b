package main

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// settleCmd makes a command that settles leases one by one, so that neither
// queue nor batch need be known.
func (a *app) settleCmd(use, shortText, example string, one func(context.Context, *client.Client, string) (*wire.SettleResult, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use + " LEASE_ID… | -",
		Short:   shortText,
		Long:    shortText + ".\n\nTakes lease ids as arguments, or from stdin, one a line, with \"-\". Fails (1) where\na lease was lost.",
		Example: example,
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, leases []string) error {
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
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) ackCmd() *cobra.Command {
	var result string
	cmd := a.settleCmd("ack", "End leases with success",
		"  qlogd ack 01J…\n  qlogd ack 01J… --result '{\"ok\":true}'\n  qlogd lease jobs -o json | jq -r .lease_id | qlogd ack -",
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
	var (
		text  string
		delay time.Duration
	)
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
	cmd := a.settleCmd("dead-letter", "Give messages up",
		"  qlogd dead-letter 01J… --error 'no such customer'",
		func(ctx context.Context, c *client.Client, id string) (*wire.SettleResult, error) {
			return c.DeadLetterOne(ctx, id, wire.DeadLetterOne{Error: text})
		})
	cmd.Flags().StringVar(&text, "error", "", "what went wrong")
	return cmd
}

func (a *app) extendCmd() *cobra.Command {
	var lease time.Duration
	cmd := a.settleCmd("extend", "Let leases end later, counted from now",
		"  qlogd extend 01J… --lease 5m",
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
