package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
)

// readyCmd is curl for places that have none: a container's health check, and
// scripts that wait for a node.
func (a *app) readyCmd() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Ask whether nodes can serve",
		Long: `Asks GET /readyz of each node that --addr names, and fails (exit code 1) where one
says no or does not answer. It needs no token. With --wait it asks again until all
say yes, for at most that long.`,
		Example: `  qlogd ready
  qlogd ready --addr 127.0.0.1:7070,127.0.0.1:7080 --wait 30s`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, scheme, err := a.plainClient()
			if err != nil {
				return err
			}
			for _, addr := range strings.Split(a.reach.addr, ",") {
				url := strings.TrimSuffix(strings.TrimSpace(addr), "/")
				if !strings.Contains(url, "://") {
					url = scheme + url
				}
				if err := awaitReady(cmd.Context(), c, url+"/readyz", time.Until(a.started.Add(wait))); err != nil {
					return fmt.Errorf("%s is not ready: %w", addr, err)
				}
			}
			fmt.Fprintln(a.stdout, "ready")
			return nil
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait until all are ready")
	cmd.Flags().StringVar(&a.reach.addr, "addr", "", "address of a node, or of several: A,B,C (default $QLOGD_ADDR or "+defaultAddr+")")
	cmd.Flags().StringVar(&a.reach.caCert, "ca-cert", "", "trust the authorities in this PEM file, for https (default $QLOGD_CA_CERT)")
	return cmd
}

// plainClient is for what no token guards, and the scheme of addresses without.
func (a *app) plainClient() (*http.Client, string, error) {
	for _, v := range []struct {
		v        *string
		env, def string
	}{{&a.reach.addr, "QLOGD_ADDR", defaultAddr}, {&a.reach.caCert, "QLOGD_CA_CERT", ""}} {
		if *v.v == "" {
			*v.v = a.getenv(v.env)
		}
		if *v.v == "" {
			*v.v = v.def
		}
	}
	// No node is known yet that a connection could be kept to.
	t := &http.Transport{DisableKeepAlives: true}
	c := &http.Client{Transport: t, Timeout: 5 * time.Second}
	if a.reach.caCert == "" {
		return c, "http://", nil
	}
	pem, err := os.ReadFile(a.reach.caCert)
	if err != nil {
		return nil, "", usagef("ca-cert: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, "", usagef("ca-cert: %s has no certificate", a.reach.caCert)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return c, "https://", nil
}

// awaitReady asks until the answer is yes, and returns the last one that was
// not.
func awaitReady(ctx context.Context, c *http.Client, url string, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		err := askReady(ctx, c, url)
		if err == nil || ctx.Err() != nil || !time.Now().Before(deadline) {
			return err
		}
		select {
		case <-time.After(min(100*time.Millisecond, time.Until(deadline))):
		case <-ctx.Done():
			return err
		}
	}
}

func askReady(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return usagef("addr: %w", err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode == http.StatusOK {
		return err
	}
	var h wire.Health
	if err := wire.Unmarshal(b, &h); err == nil && len(h.Reasons) > 0 {
		return errors.New(strings.Join(h.Reasons, "; "))
	}
	return fmt.Errorf("it answers %s", resp.Status)
}
