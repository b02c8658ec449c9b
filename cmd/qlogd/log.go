package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

func (a *app) logCmd() *cobra.Command {
	return group("log",
		a.exportHeadsCmd(), a.logVerifyCmd(), a.logSegmentsCmd(), a.logArchiveCmd())
}

// openLog is a log that is read without a server: a data directory's, an
// archive's, or an archive's before a data directory's.
type openLog struct {
	fs   vfs.FS
	path string
	name string        // for people
	node *datadir.Node // nil: a copy without a card
}

// openLog opens a data directory, an archive, or both; one of them is not empty.
func (a *app) openLog(ctx context.Context, dataDir, archived string) (*openLog, error) {
	l := &openLog{fs: vfs.OS{}, path: dataDir, name: dataDir}
	if dataDir != "" {
		var err error
		if l.node, err = replay.ReadCard(dataDir); errors.Is(err, fs.ErrNotExist) {
			return nil, usagef("%w; name a node's data directory with --data-dir", err)
		} else if err != nil {
			return nil, err
		}
	}
	if archived == "" {
		return l, nil
	}
	if err := archive.CheckDir(archived); err != nil {
		return nil, usagef("%w", err)
	}
	arch, err := archive.Open(vfs.OS{}, archived)
	if errors.Is(err, archive.ErrNone) {
		return nil, usagef("%w", err)
	}
	if err != nil {
		return nil, err
	}
	base := l.fs
	if dataDir == "" {
		base, l.path, l.name = nil, "archive:", arch.String()
		l.node = &datadir.Node{ClusterID: arch.ClusterID(), NodeID: "archive"}
	} else {
		l.name += " behind " + arch.String()
		if n := l.node; n != nil && n.ClusterID != arch.ClusterID() &&
			(n.Fork == nil || n.Fork.ClusterID != arch.ClusterID()) {
			return nil, usagef("the archive is of cluster %s, the data directory of cluster %s",
				arch.ClusterID(), n.ClusterID)
		}
	}
	mounted, err := arch.Mount(ctx, base, l.path)
	if err != nil {
		return nil, err
	}
	if mounted.Missing != "" {
		fmt.Fprintln(a.stderr, "qlogd:", mounted.Missing)
	}
	l.fs = mounted
	return l, nil
}

// dir opens the log for reading its events and states.
func (l *openLog) dir() (*replay.Dir, error) {
	d, err := replay.OpenOn(l.fs, l.path, l.node)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("%w; name a node's data directory with --data-dir", err)
	}
	return d, err
}

// logSource is where a command reads a log: a directory, an archive or a server.
type logSource struct {
	*app
	dataDir, archive string
	asked            *client.Client // the server, once it was asked
}

// local reports whether the log is read from files.
func (s *logSource) local() bool { return s.dataDir != "" || s.archive != "" }

func (s *logSource) flags(cmd *cobra.Command) {
	join(opt(&s.dataDir, "data-dir", "read the log of this data directory"),
		opt(&s.reach.addr, "addr",
			"ask a running server (default $QLOGD_ADDR or "+defaultAddr+")"),
		opt(&s.archive, "archive", "read an archive, DIR, alone or before --data-dir"),
		exclusive("data-dir", "addr"), exclusive("archive", "addr"), s.authFlags)(cmd)
}

// open opens the log's files.
func (s *logSource) open(ctx context.Context) (*replay.Dir, error) {
	l, err := s.openLog(ctx, s.dataDir, s.archive)
	if err != nil {
		return nil, err
	}
	return l.dir()
}

// headOf returns a head of a node's log; the card may be nil.
func headOf(h replay.Head, card *datadir.Node) wire.LogHead {
	out := wire.LogHead{
		Index: h.Index, ChainHash: hex.EncodeToString(h.Chain[:]), Time: wire.Time(h.Time),
	}
	if card != nil {
		out.ClusterID, out.NodeID = card.ClusterID, card.NodeID
	}
	if h.EventID != (event.ID{}) {
		out.EventID = h.EventID.String()
	}
	return out
}

// proof shows the running node's log.
type proof struct{ *engine }

// HeadAt implements api.Proof.
func (p proof) HeadAt(index uint64) (wire.LogHead, error) {
	h, err := replay.HeadAt(p.log, index)
	return headOf(h, p.card), err
}

// LogSegments implements api.Proof.
func (p proof) LogSegments() wire.LogSegments {
	out := segmentsOf(p.log, p.card)
	for i := range out.Segments {
		s := &out.Segments[i]
		s.Archived = s.Sealed && p.archiver.Has(s.LastIndex)
	}
	return out
}

func segmentsOf(l *log.Log, card *datadir.Node) wire.LogSegments {
	out := wire.LogSegments{Segments: []wire.LogSegment{}}
	if card != nil {
		out.ClusterID, out.NodeID = card.ClusterID, card.NodeID
	}
	for _, s := range l.Segments() {
		out.Segments = append(out.Segments, wire.LogSegment{
			Name: s.Name, FirstIndex: s.First, LastIndex: s.Last, Bytes: s.Size,
			PreviousIndex: s.PrevIndex, PreviousChainHash: hex.EncodeToString(s.PrevChain[:]),
			ChainHash: hex.EncodeToString(s.Chain[:]), LastTime: wire.Time(s.Clock),
			Sealed: s.Sealed,
		})
	}
	return out
}

func (a *app) logSegmentsCmd() *cobra.Command {
	s := &logSource{app: a}
	return a.local("log segments",
		func(ctx context.Context, _ []string) error {
			out, err := s.segments(ctx)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(out)
			}
			row := func(g *wire.LogSegment) []any {
				state := "open"
				if g.Archived {
					state = "archived"
				} else if g.Sealed {
					state = "sealed"
				}
				return []any{g.Name, g.FirstIndex, g.LastIndex, g.Bytes, state,
					g.LastTime.String(), g.ChainHash[:16] + "…"}
			}
			return list(a, out.Segments, nil, "segment,first,last,bytes,state,last time,chain", row)
		}, s.flags)
}

func (s *logSource) segments(ctx context.Context) (*wire.LogSegments, error) {
	if !s.local() {
		c, err := s.server()
		if err != nil {
			return nil, err
		}
		out, err := c.LogSegments(ctx, client.Stale())
		return out, refusal(err)
	}
	d, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	out := segmentsOf(d.Log, d.Node)
	return &out, nil
}

// archivedBody is the output of log archive with -o json.
type archivedBody struct {
	To          string `json:"to"`
	Segments    int    `json:"segments"`  // written now
	Refreshed   int    `json:"refreshed"` // replaced because contents were erased
	Checkpoints int    `json:"checkpoints"`
	Bytes       int64  `json:"bytes"`
	UpToIndex   uint64 `json:"up_to_index"`
}

func (a *app) logArchiveCmd() *cobra.Command {
	var dataDir, to string
	var refresh bool
	return a.local("log archive", func(ctx context.Context, _ []string) error {
		if to == "" {
			return usagef("--to is needed: DIR")
		}
		a.fromEnv(&dataDir, "QLOGD_DATA_DIR", defaultDataDir)
		return a.archiveDir(ctx, dataDir, to, refresh)
	}, opt(&dataDir, "data-dir", dataDirHelp), opt(&to, "to", "where to: DIR"),
		opt(&refresh, "refresh", "also replace segments of which contents were erased since"))
}

func (a *app) archiveDir(ctx context.Context, dataDir, to string, refresh bool) error {
	if err := archive.CheckDir(to); err != nil {
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
	arch, err := archive.OpenFor(vfs.OS{}, to, l.node.ClusterID, d.Log.SegmentSize())
	if err != nil {
		return err
	}
	src := sourceOf(d)
	src.RefreshErased = refresh
	bar := a.progress("archiving", true)
	w, err := arch.Write(ctx, src, bar.set)
	bar.done()
	if err != nil {
		return err
	}
	return a.say(named{"archive": archivedBody{
		arch.String(), w.Segments, w.Refreshed, w.Checkpoints, w.Bytes, w.UpTo,
	}},
		"%s and %s (%s) archived to %s; it has all up to index:%d",
		plural(w.Segments+w.Refreshed, "segment", "segments"),
		plural(w.Checkpoints, "checkpoint", "checkpoints"),
		humanize.IBytes(uint64(w.Bytes)), arch, w.UpTo)
}

// sourceOf is a data directory as an archive's source.
func sourceOf(d *replay.Dir) archive.Source {
	return archive.Source{
		FS: d.FS, LogDir: d.LogDir(), Checkpoints: d.Checkpoints, Segments: d.Log.Segments(),
	}
}

// headExporter runs qlogd log export-heads once.
type headExporter struct {
	logSource
	all, follow bool
	every       time.Duration
}

func (a *app) exportHeadsCmd() *cobra.Command {
	x := &headExporter{logSource: logSource{app: a}, every: time.Minute}
	return a.plain("log export-heads",
		func(ctx context.Context, _ []string) error { return x.run(ctx) },
		x.flags, opt(&x.all, "all",
			"of a data directory: also a head for the end of each sealed segment"),
		opt(&x.follow, "follow", "stay, and write a head whenever there is a new one"),
		opt(&x.every, "every", "with --follow: interval between two looks"))
}

func (x *headExporter) run(ctx context.Context) error {
	if x.every < 100*time.Millisecond {
		return usagef("--every must be at least 100ms")
	}
	if x.all && !x.local() {
		return usagef("--all wants --data-dir or --archive")
	}
	var last *wire.LogHead
	for {
		head, again, err := x.look(ctx, last)
		switch {
		case err != nil && (!x.follow || last == nil):
			return refusal(err)
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
		if !x.follow || ctx.Err() != nil {
			return nil
		}
		pause(ctx, x.every)
	}
}

// look returns the log's head, and what it has at the last head: nil if retention has deleted it.
func (x *headExporter) look(ctx context.Context, last *wire.LogHead) (
	head, again *wire.LogHead, err error) {
	at := func(index uint64) (*wire.LogHead, error) { return x.serverHead(ctx, index) }
	if x.local() {
		d, err := x.open(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer d.Close()
		at = func(index uint64) (*wire.LogHead, error) { return dirHead(d, index) }
		for _, s := range d.Log.Segments() {
			if !x.all || last != nil || !s.Sealed {
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
	if head, err = at(newest); err == nil && last != nil && last.Index <= head.Index {
		again, err = at(last.Index)
	}
	return head, again, err
}

// newest is the index of the log's head, whatever it is.
const newest = math.MaxUint64

// serverHead returns a server's head at an index, nil if retention has deleted it.
func (s *logSource) serverHead(ctx context.Context, index uint64) (*wire.LogHead, error) {
	if s.asked == nil {
		var err error
		if s.asked, err = s.server(); err != nil {
			return nil, err
		}
	}
	if index == newest {
		return s.asked.LogHead(ctx)
	}
	h, err := s.asked.LogHead(ctx, client.At(fmt.Sprintf("index:%d", index)))
	if errors.Is(err, client.ErrHistoryExpired) {
		return nil, nil
	}
	return h, err
}

// dirHead does the same with a data directory.
func dirHead(d *replay.Dir, index uint64) (*wire.LogHead, error) {
	h, err := replay.HeadAt(d.Log, index)
	if errors.Is(err, log.ErrGone) && index != newest {
		return nil, nil
	}
	out := headOf(h, d.Node)
	return &out, err
}

// stillHolds compares an earlier head with the log's head, and with what the log has at the earlier
// one's index: nil if retention has deleted it.
func stillHolds(before, head, now *wire.LogHead) (err error) {
	switch {
	case before == nil:
		return nil
	case head.ClusterID != before.ClusterID:
		err = fmt.Errorf("this is a foreign log: it is of cluster %s, "+
			"the head before was of cluster %s", head.ClusterID, before.ClusterID)
	case head.Index < before.Index:
		err = fmt.Errorf("the log's tail was cut off: it ended at index %d, and now at %d",
			before.Index, head.Index)
	case now != nil && now.ChainHash != before.ChainHash:
		err = fmt.Errorf("history was rewritten up to index %d: the chain was %.16s… there, "+
			"and now is %.16s…", before.Index, before.ChainHash, now.ChainHash)
	default:
		return nil
	}
	return &exitError{exitDifference, err}
}

// headsBody is the result of comparing with heads, with --output json.
type headsBody struct {
	OK bool `json:"ok"`
	replay.HeadsReport
	WrongIndex uint64 `json:"wrong_index,omitzero"`
	Difference string `json:"difference,omitzero"`
}

func (a *app) logVerifyCmd() *cobra.Command {
	s := &logSource{app: a}
	var heads string
	return a.local("log verify",
		func(ctx context.Context, _ []string) error {
			var kept []replay.Head
			if heads != "" {
				b, err := a.readInput(heads)
				if err != nil {
					return err
				}
				if kept, err = parseHeads(heads, b); err != nil {
					return err
				}
			}
			if s.reach.addr != "" {
				if heads == "" {
					return usagef("--addr wants --heads: " +
						"only a data directory can be checked by itself")
				}
				report, err := s.serverHeads(ctx, kept)
				return s.printHeads(report, err)
			}
			if !s.local() {
				a.fromEnv(&s.dataDir, "QLOGD_DATA_DIR", defaultDataDir)
			}
			l, err := s.openLog(ctx, s.dataDir, s.archive)
			if err != nil {
				return err
			}
			if err := a.verifyDir(ctx, l); err != nil || heads == "" {
				return err
			}
			d, err := l.dir()
			if err != nil {
				return err
			}
			defer d.Close()
			report, err := d.Heads(ctx, kept)
			return s.printHeads(report, err)
		}, s.flags, opt(&heads, "heads", "a file of heads, one JSON line each (- is stdin)"))
}

// parseHeads reads what export-heads has written.
func parseHeads(name string, b []byte) ([]replay.Head, error) {
	var out []replay.Head
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for line := 1; sc.Scan(); line++ {
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		var w wire.LogHead
		if err := json.Unmarshal(text, &w); err != nil {
			return nil, usagef("%s:%d: not a head: %w", name, line, err)
		}
		chain, err := hex.DecodeString(w.ChainHash)
		if err != nil || len(chain) != 32 {
			return nil, usagef("%s:%d: not a head: chain_hash must be 64 hex digits", name, line)
		}
		h := replay.Head{
			ClusterID: w.ClusterID, Index: w.Index, Chain: [32]byte(chain), Time: int64(w.Time),
		}
		if w.EventID != "" {
			if h.EventID, err = event.ParseID(w.EventID); err != nil {
				return nil, usagef("%s:%d: not a head: event_id is %w", name, line, err)
			}
		}
		out = append(out, h)
	}
	if err := sc.Err(); err != nil {
		return nil, usagef("%s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, usagef("%s has no heads", name)
	}
	return out, nil
}

// serverHeads compares heads with a running server's chain.
func (s *logSource) serverHeads(ctx context.Context, heads []replay.Head) (
	r replay.HeadsReport, err error) {
	r.Heads = len(heads)
	now, err := s.serverHead(ctx, newest)
	if err != nil {
		return r, refusal(err)
	}
	for _, h := range heads {
		kept := headOf(h, &datadir.Node{ClusterID: cmp.Or(h.ClusterID, now.ClusterID)})
		var there *wire.LogHead
		if kept.Index <= now.Index {
			if there, err = s.serverHead(ctx, kept.Index); err != nil {
				return r, refusal(err)
			}
			if there == nil {
				r.Deleted++
				continue
			}
		}
		if err := stillHolds(&kept, now, there); err != nil {
			return r, &replay.Difference{Index: r.Newest + 1, Err: err}
		}
		r.Equal, r.Newest = r.Equal+1, max(r.Newest, kept.Index)
	}
	if r.Equal == 0 {
		return r, fmt.Errorf("none of the %d heads could be compared with the log: "+
			"retention has deleted all of them", r.Heads)
	}
	return r, nil
}

// printHeads prints the result of comparing.
func (s *logSource) printHeads(r replay.HeadsReport, err error) error {
	diff, different := errors.AsType[*replay.Difference](err)
	if err != nil && !different {
		return err
	}
	body := headsBody{OK: !different, HeadsReport: r}
	if different {
		body.WrongIndex, body.Difference = diff.Index, diff.Error()
	}
	text := fmt.Sprintf("%s: %d agree, the newest at index:%d",
		plural(r.Heads, "head", "heads"), r.Equal, r.Newest)
	if r.Deleted > 0 {
		text += fmt.Sprintf("; %d are of history that retention has deleted", r.Deleted)
	}
	if s.output == "json" || !different {
		if err := s.say(named{"heads": body}, "%s", text); err != nil {
			return err
		}
	}
	if different {
		return &exitError{exitDifference, fmt.Errorf("the heads show a difference: %w", diff)}
	}
	return nil
}
