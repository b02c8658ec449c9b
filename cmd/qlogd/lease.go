package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) leaseCmd() *cobra.Command {
	var (
		o        client.LeaseOptions
		ack, all bool
	)
	cmd := &cobra.Command{
		Use:   "lease QUEUE…",
		Short: "Take messages to work on",
		Long: `Takes messages from a queue, or from several, tried in their order. Each is yours
until its lease runs out: settle it by its lease id (qlogd ack, retry, extend,
release, dead-letter), or let --ack do it as soon as it is printed.`,
		Example: `  qlogd lease jobs
  qlogd lease jobs --max 10 --wait 30s --lease 5m -o json
  qlogd lease jobs --ack --all -o json | jq .payload`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if o.Wait < 0 || o.Wait > time.Minute {
				return usagef("--wait must be from 0 to 1m")
			}
			if all && !ack {
				return usagef("--all needs --ack: without it every lease would run out")
			}
			for total := 0; ; {
				var messages []wire.LeasedMessage
				var err error
				if len(argv) == 1 {
					messages, err = c.Lease(ctx, argv[0], o)
				} else {
					messages, err = c.LeaseFrom(ctx, argv, o)
				}
				if err != nil {
					return err
				}
				if err := a.leased(messages); err != nil {
					return err
				}
				if ack {
					if err := ackAll(ctx, c, messages); err != nil {
						return err
					}
				}
				total += len(messages)
				if !all || len(messages) == 0 {
					if a.output != "json" {
						verb := "leased"
						if ack {
							verb = "leased and acked"
						}
						fmt.Fprintf(a.stderr, "%s %s\n", plural(total, "message", "messages"), verb)
					}
					return nil
				}
			}
		}),
	}
	f := cmd.Flags()
	f.IntVar(&o.Max, "max", 1, "most messages, 1 to 1000")
	f.DurationVar(&o.Wait, "wait", 0, "how long to wait while there is nothing, at most 1m")
	f.DurationVar(&o.Lease, "lease", 0, "how long the lease is (default: the queue's policy)")
	f.StringVar(&o.Worker, "worker", worker(), "who asks, for people who look")
	f.StringSliceVar(&o.Kinds, "kind", nil, "only messages of these kinds")
	f.BoolVar(&ack, "ack", false, "ack each batch once it is printed")
	f.BoolVar(&all, "all", false, "with --ack: go on until nothing comes")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) leased(messages []wire.LeasedMessage) error {
	rows := make([][]any, 0, len(messages))
	for _, m := range messages {
		if a.output == "json" {
			if err := a.wire(m); err != nil {
				return err
			}
			continue
		}
		payload := string(m.Payload)
		if m.PayloadBytes != nil {
			payload = "(" + m.ContentType + ") " + base64.StdEncoding.EncodeToString(m.PayloadBytes)
		}
		rows = append(rows, []any{m.ID, m.LeaseID, m.Key, m.Attempt, a.when(m.LeaseExpiresAt), short(payload, 60)})
	}
	if a.output == "json" || len(messages) == 0 {
		return nil
	}
	return a.table([]string{"message", "lease", "key", "attempt", "until", "payload"}, rows)
}

func ackAll(ctx context.Context, c *client.Client, messages []wire.LeasedMessage) error {
	byQueue := map[string][]string{}
	for _, m := range messages {
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
		return &exitError{exitFailed, errors.New(plural(lost, "lease was", "leases were") + " lost before the ack")}
	}
	return nil
}
