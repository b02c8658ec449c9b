package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" // on the default mux
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/internal/pages"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/server"
)

var serveCommand = plain("serve", func(c request, s *config) error {
	if err := s.load(c.flags, c.getenv); err != nil {
		return err
	}
	return c.serve(c.ctx, s)
})

// loadConfig reads the settings of the command line, the environment and the file.
func (a *app) loadConfig() (*config, error) {
	c, cmd := &config{}, describe("serve")
	c.flags(a, cmd)
	if err := cmd.ParseFlags(a.args[1:]); err != nil { // after "serve"
		return nil, err
	}
	return c, c.load(cmd.Flags(), a.getenv)
}

// reload handles SIGHUP: each setting that can change is read again or, on a mistake,
// stays as it was. One line of the log lists both.
func (a *app) reload(n *server.Node, logger *slog.Logger, level *slog.LevelVar) {
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
	c, err := a.loadConfig()
	if err == nil {
		next = c.level
	}
	note("log-level", err)
	n.Reload(note)
	// Before the new level, which might hide it.
	if len(errs) > 0 {
		logger.Error("not all settings could be reloaded",
			"old", kept, "new", read, "error", errors.Join(errs...))
	} else {
		logger.Info("settings reloaded", "settings", read, "log-level", next)
	}
	level.Set(next)
}

// serve runs a node until a signal, the end of the context, or a fatal failure.
func (a *app) serve(ctx context.Context, c *config) error {
	level := &slog.LevelVar{} // changes while the node runs
	level.Set(c.level)
	o := &slog.HandlerOptions{Level: level}
	logger := slog.New(slog.NewTextHandler(a.stderr, o))
	if c.LogFormat == "json" {
		logger = slog.New(slog.NewJSONHandler(a.stderr, o))
	}
	b := build()
	c.Version, c.Commit, c.Admin = b.Version, b.Commit, adminHandler()
	// Before anything is started, so that no signal is lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	n, err := server.Start(&c.Config, logger)
	if err != nil {
		return advise(err)
	}
	for ready := n.Ready(); ; {
		select {
		case <-ready:
			a.sdNotify("READY=1")
			ready = nil
		case <-ctx.Done():
			return a.drain(n, logger, signals, "context ended")
		case err := <-n.Broken():
			// The files or the state cannot be trusted: nothing more is written, and the
			// next start checks them.
			a.sdNotify("STOPPING=1")
			return failure(err)
		case s := <-signals:
			if s != syscall.SIGHUP {
				return a.drain(n, logger, signals, s.String())
			}
			a.sdNotify("RELOADING=1")
			a.reload(n, logger, level)
			a.sdNotify("READY=1")
		}
	}
}

// adminHandler serves pprof and POST /debug/free.
func adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/debug/pprof/", http.DefaultServeMux)
	// Returns free memory to the system: what is resident afterwards the node needs.
	mux.HandleFunc("POST /debug/free", func(w http.ResponseWriter, _ *http.Request) {
		debug.FreeOSMemory()
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// failure is the error of a node that cannot continue, with what to do about its data directory.
func failure(err error) error {
	switch {
	case errors.Is(err, raft.ErrAhead):
		return exitf(exitDiverged, "node failed: %w; it may have the only copy of them: do not delete "+
			"its data directory, see what they are with "+
			"qlogd replay --diff --against ANOTHER_NODES_DIR", err)
	case errors.Is(err, raft.ErrDiverged):
		return exitf(exitDiverged, "node failed: %w; keep a copy of its data directory for "+
			"examination, check memory and disk, and start it with an empty one", err)
	}
	return fmt.Errorf("node failed: %w", advise(err))
}

// advise adds to an error of an address, the disk, or what is on it, what an operator does about it.
func advise(err error) error {
	advice := ""
	switch {
	case errors.Is(err, pages.ErrDamaged):
		advice = "keep the data directory for examination; a member of a cluster starts with an " +
			"empty one and fetches everything, a single node continues its log with " +
			"qlogd replay --data-dir OLD --into NEW (docs/operations/damage.md#a-damaged-raft-store)"
	case log.IsDamage(err): // main adds the commands
		advice = "a member of a cluster starts with an empty data directory and fetches " +
			"everything, a single node continues its log in a new one"
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "does a node run there already? --http-addr and --raft-addr set other addresses"
	case errors.Is(err, syscall.ENOSPC):
		advice = "make room on the disk and start the node again"
	case errors.Is(err, watchdog.ErrStalled), errors.Is(err, syscall.EIO), errors.Is(err, syscall.EROFS):
		advice = "check the disk; if it is sound, start the node again, else replace it: a member " +
			"of a cluster starts with an empty data directory and fetches everything, " +
			"a single node needs a backup (docs/operations/damage.md#a-disk-that-fails)"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}

// sameSignal is the time in which a second signal is the first one again.
const sameSignal = 250 * time.Millisecond

// drain stops a node gracefully; a second signal ends it at once.
func (a *app) drain(n *server.Node, logger *slog.Logger, signals <-chan os.Signal,
	why string) error {
	logger.Info("draining", "why", why)
	a.sdNotify("STOPPING=1")
	ctx, cancel := context.WithTimeout(context.Background(), server.DrainTime)
	defer cancel()
	began := time.Now() // timeout(1) signals the process and then its group
	done := make(chan error, 1)
	go func() { done <- n.Stop(ctx) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			logger.Info("stopped")
			return nil
		case s := <-signals:
			if s != syscall.SIGHUP && time.Since(began) > sameSignal {
				return errors.New("ended by a second signal; open requests have an unknown outcome")
			}
		}
	}
}

// sdNotify reports the server's state to systemd (Type=notify), if it runs under it.
func (a *app) sdNotify(state string) {
	name := a.getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if name[0] == '@' {
		name = "\x00" + name[1:] // the abstract name space
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
