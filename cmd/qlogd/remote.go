package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

const defaultAddr = "http://127.0.0.1:7070"

// reach is how a command reaches a server. What no flag names is in the
// environment.
type reach struct {
	addr      string // one or more, separated by commas
	token     string
	tokenFile string
	caCert    string
}

// remoteFlags gives a command that talks to a server the flags to reach it, and
// --output.
func (a *app) remoteFlags(cmd *cobra.Command) {
	a.reachFlags(cmd)
	a.outputFlag(cmd)
}

// reachFlags gives a command the flags to reach a server.
func (a *app) reachFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.reach.addr, "addr", "", "address of a node, or of several: A,B,C (default $QLOGD_ADDR or "+defaultAddr+")")
	a.authFlags(cmd)
}

// authFlags gives a command what it needs to be let in.
func (a *app) authFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.reach.token, "token", "", "token to send (default $QLOGD_TOKEN); others on this machine can see it: better --token-file")
	f.StringVar(&a.reach.tokenFile, "token-file", "", "read the token from this file (default $QLOGD_TOKEN_FILE)")
	f.StringVar(&a.reach.caCert, "ca-cert", "", "trust the authorities in this PEM file, for https (default $QLOGD_CA_CERT)")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
}

// server returns a client of the nodes that flags or environment name.
func (a *app) server(more ...client.Option) (*client.Client, error) {
	r := a.reach
	or := func(v *string, env, def string) {
		if *v == "" {
			*v = a.getenv(env)
		}
		if *v == "" {
			*v = def
		}
	}
	or(&r.addr, "QLOGD_ADDR", defaultAddr)
	or(&r.caCert, "QLOGD_CA_CERT", "")
	if r.token == "" && r.tokenFile == "" {
		// What was typed goes before both of the environment's.
		or(&r.token, "QLOGD_TOKEN", "")
		or(&r.tokenFile, "QLOGD_TOKEN_FILE", "")
	}
	if r.token == "" && r.tokenFile != "" {
		b, err := os.ReadFile(r.tokenFile)
		if err != nil {
			return nil, usagef("token: %w", err)
		}
		if r.token = strings.TrimSpace(string(b)); r.token == "" {
			return nil, usagef("token: %s is empty", r.tokenFile)
		}
	}
	opts := []client.Option{
		client.WithUserAgent("qlogd-cli/" + build().Version),
		client.WithToken(r.token),
		// Somebody waits at a prompt: a server that isn't there is told soon.
		client.WithRetry(client.Retry{Attempts: 4, Min: 50 * time.Millisecond, Max: 2 * time.Second}),
	}
	if r.caCert != "" {
		opts = append(opts, client.WithCACert(r.caCert))
	}
	c, err := client.New(r.addr, append(opts, more...)...)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return c, nil
}

// onServer is the body of a command that asks a server: it makes the client, and
// tells what the server refuses as wrong usage.
func (a *app) onServer(do func(ctx context.Context, c *client.Client, argv []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, argv []string) error {
		c, err := a.server()
		if err != nil {
			return err
		}
		return told(do(cmd.Context(), c, argv))
	}
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
	if errors.Is(err, client.ErrUnauthenticated) {
		return fmt.Errorf("%w; the token comes from --token-file, --token or QLOGD_TOKEN", err)
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
