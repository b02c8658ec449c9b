package main

import (
	"context"
	"encoding/hex"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/replay"
)

func (a *app) logCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "log",
		Short: "Prove that the event log is what it was",
		Example: `  qlogd log export-heads >> /elsewhere/heads.jsonl
  qlogd log verify --data-dir /var/lib/qlogd --heads /elsewhere/heads.jsonl
  qlogd log archive --to /mnt/backup/qlogd
  qlogd log segments`,
	}, a.exportHeadsCmd(), a.logVerifyCmd(), a.logSegmentsCmd(), a.logArchiveCmd())
}

// logSource is where a log is read from: a directory, an archive or a server.
type logSource struct {
	*app
	dataDir, archive string
}

// local reports whether the log is read here, and not by asking a server.
func (s *logSource) local() bool { return s.dataDir != "" || s.archive != "" }

// flags gives a command the choice of a log.
func (s *logSource) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.dataDir, "data-dir", "", "read the log of this data directory")
	cmd.Flags().StringVar(&s.reach.addr, "addr", "", "ask a running server (default $QLOGD_ADDR or "+defaultAddr+")")
	cmd.Flags().StringVar(&s.archive, "archive", "", "read an archive, DIR, alone or before --data-dir")
	cmd.MarkFlagsMutuallyExclusive("data-dir", "addr")
	cmd.MarkFlagsMutuallyExclusive("archive", "addr")
	s.authFlags(cmd)
}

// headOf is a head as it is told.
func headOf(h replay.Head, cluster, node string) wire.LogHead {
	out := wire.LogHead{ClusterID: cluster, NodeID: node, Index: h.Index, ChainHash: hex.EncodeToString(h.Chain[:]), Time: wire.Time(h.Time)}
	if h.EventID != (event.ID{}) {
		out.EventID = h.EventID.String()
	}
	return out
}

// dirHead is the head of a data directory up to an index.
func dirHead(d *replay.Dir, index uint64) (wire.LogHead, error) {
	h, err := replay.HeadAt(d.Log, index)
	if err != nil {
		return wire.LogHead{}, err
	}
	cluster, node := "", ""
	if d.Node != nil {
		cluster, node = d.Node.ClusterID, d.Node.NodeID
	}
	return headOf(h, cluster, node), nil
}

// proof shows the running node's log.
type proof struct{ *engine }

// HeadAt implements api.Proof.
func (p proof) HeadAt(index uint64) (wire.LogHead, error) {
	h, err := replay.HeadAt(p.log, index)
	return headOf(h, p.card.ClusterID, p.card.NodeID), err
}

// LogSegments implements api.Proof.
func (p proof) LogSegments() wire.LogSegments {
	out := segmentsOf(p.log, p.card.ClusterID, p.card.NodeID)
	for i := range out.Segments {
		s := &out.Segments[i]
		s.Archived = s.Sealed && p.archiver.has(s.LastIndex)
	}
	return out
}

func segmentsOf(l *eventlog.Log, cluster, node string) wire.LogSegments {
	out := wire.LogSegments{ClusterID: cluster, NodeID: node, Segments: []wire.LogSegment{}}
	for _, s := range l.Segments() {
		out.Segments = append(out.Segments, wire.LogSegment{
			Name: s.Name, FirstIndex: s.First, LastIndex: s.Last, Bytes: s.Size,
			PreviousIndex: s.PrevIndex, PreviousChainHash: hex.EncodeToString(s.PrevChain[:]),
			ChainHash: hex.EncodeToString(s.Chain[:]), LastTime: wire.Time(s.Clock), Sealed: s.Sealed,
		})
	}
	return out
}

func (a *app) logSegmentsCmd() *cobra.Command {
	s := &logSource{app: a}
	cmd := &cobra.Command{
		Use:     "segments",
		Short:   "List the files of the event log",
		Example: "  qlogd log segments\n  qlogd log segments --data-dir ./qlogd-data -o json",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := s.segments(cmd.Context())
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(out)
			}
			rows := make([][]any, 0, len(out.Segments))
			for _, g := range out.Segments {
				state := "open"
				if g.Sealed {
					state = "sealed"
				}
				if g.Archived {
					state = "archived"
				}
				rows = append(rows, []any{g.Name, g.FirstIndex, g.LastIndex, g.Bytes, state, g.LastTime.String(), g.ChainHash[:16] + "…"})
			}
			return a.table([]string{"segment", "first", "last", "bytes", "state", "last time", "chain"}, rows)
		},
	}
	s.flags(cmd)
	a.outputFlag(cmd)
	return cmd
}

func (s *logSource) segments(ctx context.Context) (*wire.LogSegments, error) {
	if !s.local() {
		c, err := s.server()
		if err != nil {
			return nil, err
		}
		out, err := c.LogSegments(ctx, client.Stale())
		return out, told(err)
	}
	l, err := s.openLog(ctx, s.dataDir, s.archive)
	if err != nil {
		return nil, err
	}
	d, err := l.dir()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	cluster, node := "", ""
	if d.Node != nil {
		cluster, node = d.Node.ClusterID, d.Node.NodeID
	}
	out := segmentsOf(d.Log, cluster, node)
	return &out, nil
}
