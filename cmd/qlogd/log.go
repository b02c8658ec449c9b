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

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

var logCommands = group("log",
	plain("log export-heads", func(c request, x *headExporter) error {
		x.app = c.app
		return x.run(c.ctx)
	}, sourceFlags...),
	local("log verify", func(c request, v *logVerifier) error {
		v.app = c.app
		return v.run(c.ctx)
	}, sourceFlags...),
	local("log segments", func(c request, s *logSource) error {
		s.app = c.app
		return s.printSegments(c.ctx)
	}, sourceFlags...),
	local("log archive", func(c request, f *struct {
		DataDir, To string
		Refresh     bool
	}) error {
		if f.To == "" {
			return usagef("--to is needed: DIR")
		}
		s := &logSource{app: c.app, DataDir: f.DataDir}
		return s.copyTo(c.ctx, f.To, f.Refresh)
	}),
)

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
	if dataDir == "" {
		l.path, l.name = arch.String(), arch.String()
		l.node = &datadir.Node{ClusterID: arch.ClusterID(), NodeID: "archive"}
	} else {
		l.name += " behind " + arch.String()
		if n := l.node; n != nil && n.ClusterID != arch.ClusterID() &&
			(n.Fork == nil || n.Fork.ClusterID != arch.ClusterID()) {
			return nil, usagef("the archive is of cluster %s, the data directory of cluster %s",
				arch.ClusterID(), n.ClusterID)
		}
	}
	mounted, err := arch.Mount(ctx, l.path)
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
	DataDir, Archive string
	asked            *client.Client // the server, once it was asked
}

var sourceFlags = []flag{(*app).addrFlag, (*app).authFlags,
	exclusive("data-dir", "addr"), exclusive("archive", "addr")}

// local reports whether the log is read from files.
func (s *logSource) local() bool { return s.DataDir != "" || s.Archive != "" }

// files opens the log's files: those of the default directory if nothing is named.
func (s *logSource) files(ctx context.Context) (*openLog, error) {
	if !s.local() {
		s.DataDir = cmp.Or(s.getenv("QLOGD_DATA_DIR"), defaultDataDir)
	}
	return s.openLog(ctx, s.DataDir, s.Archive)
}

// open opens the log for reading its events and states.
func (s *logSource) open(ctx context.Context) (*replay.Dir, error) {
	l, err := s.files(ctx)
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

// headAt returns the newest block of the running node's log up to an index.
func (e *engine) headAt(index uint64) (wire.LogHead, error) {
	h, err := replay.HeadAt(e.log, index)
	return headOf(h, e.card), err
}

func (e *engine) logSegments() wire.LogSegments {
	out := segmentsOf(e.log, e.card)
	for i := range out.Segments {
		s := &out.Segments[i]
		s.Archived = s.Sealed && e.archiver.Has(s.LastIndex)
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

func (s *logSource) printSegments(ctx context.Context) error {
	out, err := s.segments(ctx)
	if err == nil && s.output == "json" {
		return s.wire(out)
	}
	return list(s.app, out.Segments, err, "segment,first,last,bytes,state,last time,chain",
		func(g *wire.LogSegment) []any {
			state := "open"
			if g.Archived {
				state = "archived"
			} else if g.Sealed {
				state = "sealed"
			}
			return []any{g.Name, g.FirstIndex, g.LastIndex, g.Bytes, state,
				g.LastTime.String(), g.ChainHash[:16] + "…"}
		})
}

func (s *logSource) segments(ctx context.Context) (out wire.LogSegments, err error) {
	if !s.local() {
		err := s.ask(func(c *client.Client) error {
			segments, err := c.LogSegments(ctx, client.Stale())
			out = *segments
			return err
		})
		return out, err
	}
	d, err := s.open(ctx)
	if err != nil {
		return out, err
	}
	defer d.Close()
	return segmentsOf(d.Log, d.Node), nil
}

// archivedBody is the output of log archive with -o json.
type archivedBody struct {
	To string `json:"to"`
	archive.Written
}

// copyTo archives the log in a directory.
func (s *logSource) copyTo(ctx context.Context, to string, refresh bool) error {
	if err := archive.CheckDir(to); err != nil {
		return usagef("%w", err)
	}
	l, err := s.files(ctx)
	if err != nil {
		return err
	}
	if l.node == nil || l.node.Blank() {
		return fmt.Errorf("%s does not say of which cluster it is (node.json)", s.DataDir)
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
	bar := s.progress("archiving", true)
	w, err := arch.Write(ctx, archive.Source{
		FS: d.FS, LogDir: d.LogDir(), Checkpoints: d.Checkpoints, Segments: d.Log.Segments(),
		RefreshErased: refresh,
	}, bar.set)
	bar.done()
	if err != nil {
		return err
	}
	return s.say(named{"archive": archivedBody{arch.String(), w}},
		"%s and %s (%s) archived to %s; it has all up to index:%d",
		plural(w.Segments+w.Refreshed, "segment", "segments"),
		plural(w.Checkpoints, "checkpoint", "checkpoints"),
		humanize.IBytes(uint64(w.Bytes)), arch, w.UpTo)
}

// headExporter runs qlogd log export-heads once.
type headExporter struct {
	logSource
	All, Follow bool
	Every       time.Duration `default:"1m"`
}

func (x *headExporter) run(ctx context.Context) error {
	if x.Every < 100*time.Millisecond {
		return usagef("--every must be at least 100ms")
	}
	if x.All && !x.local() {
		return usagef("--all wants --data-dir or --archive")
	}
	var last []replay.Head // the one written last
	for {
		head, err := x.newHead(ctx, last)
		switch {
		case errors.As(err, new(*replay.Difference)):
			return &exitError{exitDifference, err}
		case err != nil && (!x.Follow || last == nil):
			return refusal(err)
		case err != nil:
			if ctx.Err() == nil {
				fmt.Fprintln(x.stderr, "qlogd:", err, "(trying again)")
			}
		case last == nil || head.Index > last[0].Index:
			if err := x.wire(head); err != nil {
				return err
			}
			h, err := headFrom(head)
			if err != nil {
				return err
			}
			last = []replay.Head{h}
		}
		if !x.Follow || ctx.Err() != nil {
			return nil
		}
		pause(ctx, x.Every)
	}
}

// newHead returns the log's head, once the log has been compared with the last one.
func (x *headExporter) newHead(ctx context.Context, last []replay.Head) (*wire.LogHead, error) {
	chain, d, head, err := x.chain(ctx)
	if err != nil {
		return nil, err
	}
	if d != nil {
		defer d.Close()
	}
	if last != nil {
		r, err := chain.Compare(ctx, last)
		if err != nil && r.Deleted == 0 { // what retention has deleted can't be compared
			return nil, err
		}
		return head, nil
	}
	if !x.All {
		return head, nil
	}
	for _, s := range d.Log.Segments() {
		if !s.Sealed {
			continue
		}
		h, err := replay.HeadAt(d.Log, s.Last)
		if err == nil {
			err = x.wire(headOf(h, d.Node))
		}
		if err != nil {
			return nil, err
		}
	}
	return head, nil
}

// chain returns the log's chain and its head, and the directory if it is not a server's.
func (s *logSource) chain(ctx context.Context) (
	chain replay.Chain, d *replay.Dir, head *wire.LogHead, err error) {
	if s.local() {
		if d, err = s.open(ctx); err != nil {
			return chain, nil, nil, err
		}
		h, err := replay.HeadAt(d.Log, math.MaxUint64)
		if err != nil {
			return chain, nil, nil, errors.Join(err, d.Close())
		}
		out := headOf(h, d.Node)
		return d.Chain(), d, &out, nil
	}
	if s.asked == nil {
		if s.asked, err = s.server(); err != nil {
			return chain, nil, nil, err
		}
	}
	if head, err = s.asked.LogHead(ctx); err != nil {
		return chain, nil, nil, err
	}
	at := func(index uint64) ([32]byte, error) {
		h, err := s.asked.LogHead(ctx, client.At(fmt.Sprintf("index:%d", index)))
		if errors.Is(err, client.ErrHistoryExpired) {
			err = log.ErrGone
		}
		if err != nil {
			return [32]byte{}, err
		}
		parsed, err := headFrom(h)
		return parsed.Chain, err
	}
	return replay.Chain{ClusterID: head.ClusterID, End: head.Index, At: at}, nil, head, nil
}

// headsBody is the result of comparing with heads, with --output json.
type headsBody struct {
	OK bool `json:"ok"`
	replay.HeadsReport
	WrongIndex uint64 `json:"wrong_index,omitzero"`
	Difference string `json:"difference,omitzero"`
}

// logVerifier runs qlogd log verify once.
type logVerifier struct {
	logSource
	Heads string
}

func (v *logVerifier) run(ctx context.Context) error {
	var kept []replay.Head
	if v.Heads != "" {
		b, err := v.readInput(v.Heads)
		if err != nil {
			return err
		}
		if kept, err = parseHeads(v.Heads, b); err != nil {
			return err
		}
	}
	if v.reach.addr != "" {
		if v.Heads == "" {
			return usagef("--addr wants --heads: only a data directory can be checked by itself")
		}
		chain, _, _, err := v.chain(ctx)
		if err != nil {
			return refusal(err)
		}
		return v.compareHeads(ctx, chain, kept)
	}
	l, err := v.files(ctx)
	if err != nil {
		return err
	}
	if err := v.verifyDir(ctx, l); err != nil || v.Heads == "" {
		return err
	}
	d, err := l.dir()
	if err != nil {
		return err
	}
	defer d.Close()
	return v.compareHeads(ctx, d.Chain(), kept)
}

// headFrom is the opposite of headOf.
func headFrom(w *wire.LogHead) (h replay.Head, err error) {
	chain, err := hex.DecodeString(w.ChainHash)
	if err != nil || len(chain) != 32 {
		return h, errors.New("chain_hash must be 64 hex digits")
	}
	h = replay.Head{
		ClusterID: w.ClusterID, Index: w.Index, Chain: [32]byte(chain), Time: int64(w.Time),
	}
	if w.EventID != "" {
		if h.EventID, err = event.ParseID(w.EventID); err != nil {
			return h, fmt.Errorf("event_id is %w", err)
		}
	}
	return h, nil
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
		var h replay.Head
		err := json.Unmarshal(text, &w)
		if err == nil {
			h, err = headFrom(&w)
		}
		if err != nil {
			return nil, usagef("%s:%d: not a head: %w", name, line, err)
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

// compareHeads compares a chain with heads, and prints the result.
func (s *logSource) compareHeads(ctx context.Context, chain replay.Chain,
	heads []replay.Head) error {
	r, err := chain.Compare(ctx, heads)
	diff, different := errors.AsType[*replay.Difference](err)
	if err != nil && !different {
		return refusal(err)
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
