package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/qlogd/qlogd/raft"
)

func (a *app) serveCmd() *cobra.Command {
	c := &config{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Runs a node. Without any flag it is one durable node in ./qlogd-data, reached at
http://127.0.0.1:7070.

Each flag can also be set in the environment (QLOGD_HTTP_ADDR for --http-addr) or
in the file that --config names (http-addr: 127.0.0.1:7070). Flags beat the
environment, which beats the file.

Three nodes are a cluster: start each with the same --bootstrap-expect 3 and the
same --join list. A node with --join alone joins the cluster that it finds there.

SIGTERM drains: no new leases, leadership is handed over, requests in hand end,
then it exits with 0. A second signal ends it at once. SIGHUP reads the log
level, the tokens and the certificates anew.`,
		Example: `  qlogd serve
  qlogd serve --data-dir /var/lib/qlogd --http-addr 127.0.0.1:8080 --log-format json
  qlogd serve --config qlogd.yaml
  QLOGD_LOG_LEVEL=debug qlogd serve --auto-create-queues
  qlogd serve --node-id n1 --raft-addr 10.0.0.1:7071 --bootstrap-expect 3 --join 10.0.0.1:7071,10.0.0.2:7071,10.0.0.3:7071 \
    --raft-tls-cert n1.pem --raft-tls-key n1.key --raft-tls-ca ca.pem`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			typed := typedFlags(cmd.Flags())
			if err := c.load(cmd.Flags(), a.getenv); err != nil {
				return err
			}
			return a.serve(cmd.Context(), c, typed)
		},
	}
	c.flags(cmd.Flags())
	return cmd
}

// typedFlags remembers what the command line said, for a later reading of the
// environment and the file beneath it.
func typedFlags(fs *pflag.FlagSet) map[string]string {
	typed := map[string]string{}
	fs.Visit(func(f *pflag.Flag) {
		typed[f.Name] = f.Value.String()
		if s, ok := f.Value.(pflag.SliceValue); ok {
			typed[f.Name] = strings.Join(s.GetSlice(), ",") // String puts it in brackets
		}
	})
	return typed
}

// reload reads the settings anew. Only those that can change while it runs are
// used; a mistake leaves all as it was.
func (a *app) reload(typed map[string]string) (*config, error) {
	c := &config{}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.flags(fs)
	for name, value := range typed {
		if fs.Lookup(name) == nil {
			continue
		}
		if err := fs.Set(name, value); err != nil {
			return nil, err
		}
	}
	if err := c.load(fs, a.getenv); err != nil {
		return nil, err
	}
	return c, nil
}

// reread is what SIGHUP does: each setting that can change is read anew or, where
// there is a mistake, stays as it was. One line of the log says which.
func (a *app) reread(n *node, typed map[string]string, level *slog.LevelVar) {
	var read, kept []string
	var errs []error
	note := func(setting string, err error) {
		if err != nil {
			kept, errs = append(kept, setting), append(errs, err)
			return
		}
		read = append(read, setting)
	}
	next := level.Level()
	c, err := a.reload(typed)
	if err == nil {
		next, err = parseLevel(c.LogLevel)
	}
	note("log-level", err)
	n.reloadSecrets(note)
	// Told before a higher level would swallow it.
	if len(errs) > 0 {
		n.logger.Error("not all settings could be read anew, the old ones stay", "old", kept, "new", read, "error", errors.Join(errs...))
	} else {
		n.logger.Info("settings read anew", "settings", read, "log-level", next)
	}
	level.Set(next)
}

// drainTime is how long requests in hand may take once it is told to end.
const drainTime = 8 * time.Second

// serve runs a node until a signal, the context, or something that it can't go
// on from.
func (a *app) serve(ctx context.Context, c *config, typed map[string]string) error {
	level := &slog.LevelVar{}
	l, err := parseLevel(c.LogLevel)
	if err != nil {
		return err
	}
	level.Set(l)
	logger := newLogger(a.stderr, c.LogFormat, level)
	for _, w := range c.exposed() {
		logger.Warn(w.text, w.name, w.addr)
	}

	// Before anything is started: a signal that comes meanwhile is not lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	n, err := startNode(c, logger)
	if err != nil {
		return err
	}
	go n.announce(a)
	for {
		select {
		case <-ctx.Done():
			return a.drain(n, signals, "told to")
		case err := <-n.broken:
			// What is on disk, or the state, can't be trusted to go on from:
			// nothing is written any more, the next start finds out.
			sdNotify(a.getenv, "STOPPING=1")
			err = fmt.Errorf("this node can't go on: %w", err)
			if ee, ok := errors.AsType[*exitError](err); ok {
				return &exitError{ee.code, err}
			}
			if errors.Is(err, raft.ErrDiverged) {
				return &exitError{exitDiverged, fmt.Errorf("%w; keep its data directory to look into it, and start it with an empty one", err)}
			}
			return err
		case s := <-signals:
			if s != syscall.SIGHUP {
				return a.drain(n, signals, s.String())
			}
			sdNotify(a.getenv, "RELOADING=1")
			a.reread(n, typed, level)
			sdNotify(a.getenv, "READY=1")
		}
	}
}

// drain ends a node in good order; a second signal ends it at once.
func (a *app) drain(n *node, signals <-chan os.Signal, why string) error {
	n.logger.Info("draining", "why", why)
	sdNotify(a.getenv, "STOPPING=1")
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	// One wish to end can arrive twice: timeout(1) signals the process and then
	// its group.
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- n.stop(ctx) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			n.logger.Info("stopped")
			return nil
		case s := <-signals:
			if s != syscall.SIGHUP && time.Since(began) > 250*time.Millisecond {
				return errors.New("ended at once by a second signal; what was in hand has an unknown outcome")
			}
		}
	}
}

// announce says that the node serves, once it does.
func (n *node) announce(a *app) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTicker(10 * time.Second)
	defer late.Stop()
	n.logger.Info("listening", "http_addr", n.httpLis.Addr().String(), "raft_addr", n.peers.Addr())
	for {
		ok, reasons := n.ready()
		if ok {
			break
		}
		select {
		case <-tick.C:
		case <-late.C:
			n.logger.Warn("not ready yet", "reasons", reasons)
		case <-n.background.Done():
			return
		}
	}
	self := n.peers.Self()
	n.logger.Info("serving", "http", n.httpLis.Addr().String(), "raft", self.Raft,
		"node", self.Node, "cluster", self.Cluster, "data-dir", n.c.DataDir, "version", build().Version)
	sdNotify(a.getenv, "READY=1")
}
