package main

import (
	"bufio"
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
	host, err := os.Hostname()
	if err != nil {
		host = "qlogd-cli"
	}
	o := client.LeaseOptions{Max: 1, Worker: host}
	var ack, all bool
	return a.remote("lease", func(c request) error {
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
			got, err := c.LeaseFrom(c.ctx, c.args, o)
			if err == nil {
				err = a.leased(got)
			}
			if err == nil && ack {
				err = ackAll(c, got)
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
	}, opt(&o.Max, "max"), opt(&o.Wait, "wait"), opt(&o.Lease, "lease"), opt(&o.Worker, "worker"),
		opt(&o.Kinds, "kind"), opt(&ack, "ack"), opt(&all, "all"))
}

func (a *app) leased(got []wire.LeasedMessage) error {
	if len(got) == 0 {
		return nil
	}
	return list(a, got, nil, "message,lease,key,attempt,until,payload",
		func(m *wire.LeasedMessage) []any {
			payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
			return []any{m.ID, m.LeaseID, m.Key, m.Attempt, a.when(m.LeaseExpiresAt),
				short(payload, 60)}
		})
}

// ackAll acks leased messages.
func ackAll(c request, got []wire.LeasedMessage) error {
	byQueue := map[string][]string{}
	for _, m := range got {
		byQueue[m.Queue] = append(byQueue[m.Queue], m.LeaseID)
	}
	lost := 0
	for queue, leases := range byQueue {
		results, err := c.Ack(c.ctx, queue, leases...)
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

// settleCmd returns a command that settles leases one by one, so that neither queue nor
// batch need be known.
func (a *app) settleCmd(name string,
	one func(c request, lease string) (*wire.SettleResult, error), flags ...flag) *cobra.Command {
	return a.remote(name, func(c request) error {
		leases := c.args
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
			r, err := one(c, id)
			if errors.Is(err, client.ErrLeaseLost) {
				r = &wire.SettleResult{LeaseID: id, Status: "rejected", Code: "lease_lost"}
				err = nil
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
	}, flags...)
}

// settled prints settle results, and fails where one was rejected.
func (a *app) settled(results []wire.SettleResult) error {
	lost := 0
	for _, r := range results {
		if r.Status == "rejected" {
			lost++
		}
	}
	err := list(a, results, nil, "lease,status,code,until", func(r *wire.SettleResult) []any {
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
	return a.settleCmd("ack", func(c request, id string) (*wire.SettleResult, error) {
		r := wire.AckOne{Result: jsontext.Value(result)}
		if result == "" {
			r.Result = nil
		} else if !r.Result.IsValid() {
			return nil, usagef("--result is not JSON: %.64q", result)
		}
		return c.AckOne(c.ctx, id, r)
	}, opt(&result, "result"))
}

func (a *app) retryCmd() *cobra.Command {
	var r wire.RetryOne
	return a.settleCmd("retry",
		func(c request, id string) (*wire.SettleResult, error) { return c.RetryOne(c.ctx, id, r) },
		opt(&r.Error, "error"),
		millis(func(ms int64) { r.DelayMS = &ms }, "delay"))
}

func (a *app) deadLetterCmd() *cobra.Command {
	var r wire.DeadLetterOne
	return a.settleCmd("dead-letter", func(c request, id string) (*wire.SettleResult, error) {
		return c.DeadLetterOne(c.ctx, id, r)
	}, opt(&r.Error, "error"))
}

func (a *app) extendCmd() *cobra.Command {
	var r wire.ExtendOne
	return a.settleCmd("extend",
		func(c request, id string) (*wire.SettleResult, error) { return c.ExtendOne(c.ctx, id, r) },
		millis(func(ms int64) { r.LeaseMS = ms }, "lease"))
}

func (a *app) releaseCmd() *cobra.Command {
	return a.settleCmd("release",
		func(c request, id string) (*wire.SettleResult, error) { return c.ReleaseOne(c.ctx, id) })
}
