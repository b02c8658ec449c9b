package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// headExporter is one run of qlogd log export-heads.
type headExporter struct {
	logSource
	all, follow bool
	every       time.Duration
}

func (a *app) exportHeadsCmd() *cobra.Command {
	x := &headExporter{logSource: logSource{app: a}}
	cmd := &cobra.Command{
		Use:   "export-heads",
		Short: "Write the chain's head, to be kept elsewhere",
		Long: `Writes the newest block's index and chain as a line of JSON, made to be appended to
a file that whoever can write the log can't write. What the log holds up to a head
can't be changed or cut off later without "qlogd log verify --heads" telling.

With --follow a line is written at every interval in which something happened. Each
time the log is also held against the head before: where it no longer agrees, that
is told, exit code 3.`,
		Example: `  qlogd log export-heads >> /elsewhere/heads.jsonl
  qlogd log export-heads --follow --every 1m | ssh witness 'cat >> heads.jsonl'
  qlogd log export-heads --data-dir /backup/qlogd --all`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return x.run(cmd.Context()) },
	}
	x.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&x.all, "all", false, "of a data directory: also a head for the end of each sealed segment")
	f.BoolVar(&x.follow, "follow", false, "stay, and write a head whenever there is a new one")
	f.DurationVar(&x.every, "every", time.Minute, "with --follow: how often it is looked")
	return cmd
}

func (x *headExporter) run(ctx context.Context) error {
	if x.every < 100*time.Millisecond {
		return usagef("--every must be at least 100ms")
	}
	if x.all && !x.local() {
		return usagef("--all wants --data-dir or --archive")
	}
	look := x.lookDir
	if !x.local() {
		c, err := x.server()
		if err != nil {
			return err
		}
		look = func(ctx context.Context, last *wire.LogHead) (*wire.LogHead, *wire.LogHead, error) {
			return lookServer(ctx, c, last)
		}
	}
	var last *wire.LogHead
	for {
		head, again, err := look(ctx, last)
		switch {
		case err != nil && (!x.follow || last == nil):
			return told(err)
		case err != nil:
			if ctx.Err() == nil {
				fmt.Fprintln(x.stderr, "qlogd:", err, "(trying again)")
			}
		default:
			if err := stillHolds(last, head, again); err != nil {
				return err
			}
			if last == nil || head.Index > last.Index {
				if err := x.wire(head); err != nil {
					return err
				}
				last = head
			}
		}
		if !x.follow {
			return nil
		}
		select {
		case <-time.After(x.every):
		case <-ctx.Done():
			return nil
		}
	}
}

// stillHolds compares a head written before with what the log has there now.
// now is nil where retention has deleted it, or there was none before.
func stillHolds(before, head, now *wire.LogHead) error {
	if before == nil {
		return nil
	}
	differ := func(format string, args ...any) error {
		return &exitError{exitDifference, fmt.Errorf(format, args...)}
	}
	switch {
	case head.ClusterID != before.ClusterID:
		return differ("this is a foreign log: it is of cluster %s, the head before was of cluster %s", head.ClusterID, before.ClusterID)
	case head.Index < before.Index:
		return differ("the log's tail was cut off: it ended at index %d, and now at %d", before.Index, head.Index)
	case now != nil && now.ChainHash != before.ChainHash:
		return differ("history was rewritten up to index %d: the chain was %.16s… there, and now is %.16s…", before.Index, before.ChainHash, now.ChainHash)
	}
	return nil
}

// lookDir returns a directory's head, and what it has where the head before was.
func (x *headExporter) lookDir(ctx context.Context, last *wire.LogHead) (head, again *wire.LogHead, err error) {
	l, err := x.openLog(ctx, x.dataDir, x.archive)
	if err != nil {
		return nil, nil, err
	}
	d, err := l.dir()
	if err != nil {
		return nil, nil, err
	}
	defer d.Close()
	if x.all && last == nil {
		for _, s := range d.Log.Segments() {
			if !s.Sealed {
				break
			}
			h, err := dirHead(d, s.Last)
			if err == nil {
				err = x.wire(h)
			}
			if err != nil {
				return nil, nil, err
			}
		}
	}
	h, err := dirHead(d, d.Log.Head())
	if err != nil || last == nil || last.Index > h.Index || last.Index < d.Log.First() {
		return &h, nil, err
	}
	was, err := dirHead(d, last.Index)
	return &h, &was, err
}

// lookServer does so of a running server.
func lookServer(ctx context.Context, c *client.Client, last *wire.LogHead) (head, again *wire.LogHead, err error) {
	if head, err = c.LogHead(ctx); err != nil || last == nil || last.Index > head.Index {
		return head, nil, err
	}
	again, err = c.LogHead(ctx, client.At(fmt.Sprintf("index:%d", last.Index)))
	if errors.Is(err, client.ErrHistoryExpired) {
		return head, nil, nil
	}
	return head, again, err
}
