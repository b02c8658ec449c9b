package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/replay"
)

type archivedLine struct {
	Archive archivedBody `json:"archive"`
}

type archivedBody struct {
	To          string `json:"to"`
	Segments    int    `json:"segments"`  // written now
	Refreshed   int    `json:"refreshed"` // written anew: contents were erased
	Checkpoints int    `json:"checkpoints"`
	Bytes       int64  `json:"bytes"`
	UpToIndex   uint64 `json:"up_to_index"`
}

func (a *app) logArchiveCmd() *cobra.Command {
	var dataDir, to string
	var refresh bool
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Copy the log's sealed segments to a directory or an object store",
		Long: `Copies the sealed segments of a data directory's log, and a checkpoint now and
then, to a directory. What is there already is
left alone, so a run that was stopped is simply started again. Each segment is checked
before it is copied and read back afterwards; until then nobody sees it. The data
directory may be a live node's; it is not touched.

A server does the same by itself where it is told: qlogd serve --archive.

Credentials of an object store come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
the shared credentials file, or the machine's role; its address from ?endpoint= or
AWS_ENDPOINT_URL, its region from ?region= or AWS_REGION.`,
		Example: `  qlogd log archive --to /backup/qlogd
  qlogd log archive --data-dir /var/lib/qlogd --to /mnt/backup/qlogd
  qlogd replay --archive /backup/qlogd --from start --to 2026-01-31T00:00:00Z`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usagef("--to is needed: DIR")
			}
			if dataDir == "" {
				if dataDir = a.getenv("QLOGD_DATA_DIR"); dataDir == "" {
					dataDir = "./qlogd-data"
				}
			}
			return a.archiveDir(cmd.Context(), dataDir, to, refresh)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dataDir, "data-dir", "", "data directory to read (default $QLOGD_DATA_DIR or ./qlogd-data)")
	f.StringVar(&to, "to", "", "where to: DIR")
	f.BoolVar(&refresh, "refresh", false, "also replace segments of which contents were erased since")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) archiveDir(ctx context.Context, dataDir, to string, refresh bool) error {
	store, err := archive.NewStore(to)
	if err != nil {
		return usagef("%w", err)
	}
	l, err := a.openLog(ctx, dataDir, "")
	if err != nil {
		return err
	}
	if l.node == nil || l.node.Blank() {
		return fmt.Errorf("%s does not say of which cluster it is (node.json)", dataDir)
	}
	d, err := l.dir()
	if err != nil {
		return err
	}
	defer d.Close()
	arch, err := archive.OpenFor(ctx, store, l.node.ClusterID, d.Log.SegmentSize())
	if err != nil {
		return err
	}
	src := sourceOf(d)
	src.RefreshErased = refresh
	src.Logger = slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	bar := a.progress("archiving", true)
	src.Progress = bar.set
	w, err := arch.Write(ctx, src)
	bar.done()
	if err != nil {
		return err
	}
	body := archivedBody{arch.String(), w.Segments, w.Refreshed, w.Checkpoints, w.Bytes, w.UpTo}
	if a.output == "json" {
		return a.wire(archivedLine{body})
	}
	fmt.Fprintf(a.stdout, "%s and %s (%s) archived to %s; it has all up to index:%d\n",
		plural(w.Segments+w.Refreshed, "segment", "segments"), plural(w.Checkpoints, "checkpoint", "checkpoints"), humanize.IBytes(uint64(w.Bytes)), body.To, w.UpTo)
	return nil
}

// sourceOf is a data directory as an archive's source.
func sourceOf(d *replay.Dir) archive.Source {
	return archive.Source{FS: d.FS, LogDir: d.LogDir(), Checkpoints: d.Checkpoints, Segments: d.Log.Segments()}
}
