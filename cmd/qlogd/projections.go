package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/replay"
)

func (a *app) projectionsCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "projections",
		Short: "Show or rebuild the read models",
		Long: `The read models (rates, totals, dead letters by reason, replayed dead letters,
operations) are computed from the log into projections.db, about a second behind it.
No decision depends on them, and they can be rebuilt at any time.`,
		Example: "  qlogd projections rebuild --addr http://127.0.0.1:7070",
	}, a.projectionsRebuildCmd(), a.projectionsShowCmd())
}

// stoppedNode is the locked data directory of a node that does not run.
type stoppedNode struct {
	dir  *replay.Dir
	lock *datadir.Lock
	path string
}

func (a *app) stoppedNode(dataDir string) (*stoppedNode, error) {
	if dataDir == "" {
		if dataDir = a.getenv("QLOGD_DATA_DIR"); dataDir == "" {
			dataDir = "./qlogd-data"
		}
	}
	// Acquire would create a missing directory.
	if _, err := datadir.ReadNode(dataDir); errors.Is(err, datadir.ErrNoNode) {
		return nil, usagef("%s is no node's data directory: it has no node.json", dataDir)
	} else if err != nil {
		return nil, err
	}
	s := &stoppedNode{path: datadir.Path(dataDir, datadir.ProjectionFile)}
	var err error
	if s.lock, err = datadir.Acquire(dataDir); err != nil {
		return nil, fmt.Errorf("%w; use --addr for a running server", err)
	}
	if s.dir, err = replay.Open(dataDir); err != nil {
		_ = s.lock.Release()
		return nil, err
	}
	return s, nil
}

func (s *stoppedNode) close() {
	_ = s.dir.Close() // read only
	_ = s.lock.Release()
}

func (a *app) projectionsRebuildCmd() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Delete the read models and compute them again",
		Long: `Rebuilds a node's read models from its log: those of a stopped node in its data
directory, or those of a running one with --addr, in the background. The command waits
for the end; until then the node's statistics are incomplete. Each node has its own
read models.`,
		Example: `  qlogd projections rebuild --data-dir ./qlogd-data
  qlogd projections rebuild --addr http://127.0.0.1:7070`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.reach.addr != "" {
				return a.rebuildRemote(cmd.Context())
			}
			return a.rebuildStopped(cmd.Context(), dataDir)
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "data directory of a stopped node (default $QLOGD_DATA_DIR or ./qlogd-data)")
	cmd.Flags().StringVar(&a.reach.addr, "addr", "", "address of a running server")
	cmd.MarkFlagsMutuallyExclusive("data-dir", "addr")
	a.authFlags(cmd)
	a.outputFlag(cmd)
	return cmd
}

// rebuildRemote asks a server to rebuild its read models and waits for the end.
func (a *app) rebuildRemote(ctx context.Context) error {
	c, err := a.server()
	if err != nil {
		return err
	}
	p, err := c.RebuildProjections(ctx)
	if err != nil {
		return told(err)
	}
	bar := a.progress("rebuilding", true)
	defer bar.done()
	for head := p.LogHead; p.Index < head; {
		bar.set(int64(p.Index), int64(head))
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if p, err = c.Projections(ctx); err != nil {
			return told(err)
		}
	}
	bar.done()
	return a.printProjections(p)
}

// rebuildStopped rebuilds the read models in a data directory.
func (a *app) rebuildStopped(ctx context.Context, dataDir string) error {
	n, err := a.stoppedNode(dataDir)
	if err != nil {
		return err
	}
	defer n.close()
	src := followed{n.dir.Log}
	if err := os.Remove(n.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	models, err := store.Open(n.path, n.dir.Node.ClusterID, store.Options{Interval: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	counting, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- models.Follow(counting, src) }()
	bar := a.progress("rebuilding", true)
	for err == nil {
		wait, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		done := models.WaitFor(wait, src.Head()) == nil
		cancel()
		index, _ := models.Position()
		bar.set(int64(index), int64(src.Head()))
		if done {
			break
		}
		select {
		case err = <-ended: // returns only when the log or the disk fails
		case <-ctx.Done():
			err = ctx.Err()
		default:
		}
	}
	bar.done()
	index, clock := models.Position()
	stop()
	if err == nil {
		<-ended
	}
	if err := errors.Join(err, models.Close()); err != nil {
		return err
	}
	return a.printProjections(&wire.Projections{Index: index, Time: wire.Time(clock), LogHead: src.Head()})
}

func (a *app) projectionsShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the position of a server's read models",
		Example: "  qlogd projections show\n  qlogd projections show -o json",
		Args:    args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			p, err := c.Projections(ctx)
			if err != nil {
				return err
			}
			return a.printProjections(p)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) printProjections(p *wire.Projections) error {
	if a.output == "json" {
		return a.wire(p)
	}
	return a.pairs("read models", "", [][]any{{"index", p.Index}, {"time", a.when(p.Time)}, {"log head", p.LogHead}})
}
