package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

const defaultAddr = "http://127.0.0.1:7070"

// remoteFlags gives a command that talks to a server --addr and --output.
func (a *app) remoteFlags(cmd *cobra.Command) {
	a.addrFlag(cmd, defaultAddr)
	a.outputFlag(cmd)
}

func (a *app) addrFlag(cmd *cobra.Command, def string) {
	cmd.Flags().StringVar(&a.addr, "addr", "", "address of a node (default $QLOGD_ADDR or "+def+")")
}

// server returns a client of the node that --addr or QLOGD_ADDR name.
func (a *app) server() (*client.Client, error) {
	addr := a.addr
	if addr == "" {
		addr = a.getenv("QLOGD_ADDR")
	}
	if addr == "" {
		addr = defaultAddr
	}
	c, err := client.New(addr,
		client.WithUserAgent("qlogd-cli/"+build().Version),
		client.WithToken(a.getenv("QLOGD_TOKEN")),
		// Somebody waits at a prompt: a server that isn't there is told soon.
		client.WithRetry(client.Retry{Attempts: 4, Min: 50 * time.Millisecond, Max: 2 * time.Second}))
	if err != nil {
		return nil, usagef("%w", err)
	}
	return c, nil
}

// told turns the server's refusal of the arguments into wrong usage, and
// leaves the rest as it is.
func told(err error) error {
	var e *client.Error
	if errors.As(err, &e) && (errors.Is(err, client.ErrInvalidArgument) || e.Problem.Code == "invalid_json") {
		if e.Problem.Field != "" {
			return usagef("%s: %w", e.Problem.Field, err)
		}
		return usagef("%w", err)
	}
	return err
}

// settled prints settle results and fails where one was rejected.
func (a *app) settled(results []wire.SettleResult) error {
	lost := 0
	rows := make([][]any, 0, len(results))
	for _, r := range results {
		if r.Status == "rejected" {
			lost++
		}
		next := r.NextAt
		if next == 0 {
			next = r.LeaseExpiresAt
		}
		rows = append(rows, []any{r.LeaseID, r.Status, r.Code, a.when(next)})
		if a.output == "json" {
			if err := a.wire(r); err != nil {
				return err
			}
		}
	}
	if a.output != "json" {
		if err := a.table([]string{"lease", "status", "code", "until"}, rows); err != nil {
			return err
		}
	}
	if lost > 0 {
		return &exitError{exitFailed, errors.New(plural(lost, "lease was", "leases were") + " lost")}
	}
	return nil
}

// wire writes one of the API's values as a line of JSON.
func (a *app) wire(v any) error {
	b, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(append(b, '\n'))
	return err
}

// when is a time of the API in a table.
func (a *app) when(t wire.Time) string {
	if t == 0 {
		return "-"
	}
	return a.ago(t.Time())
}

// worker names this process to people who look at leases.
func worker() string {
	host, err := os.Hostname()
	if err != nil {
		return "qlogd-cli"
	}
	return host
}
