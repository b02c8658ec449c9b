package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
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

// logSource is where a command reads a log: a data directory, an archive, an archive before a data
// directory, or a server.
type logSource struct {
	*app
	DataDir, Archive string
	asked            *client.Client // the server, once it was asked

	// Of files, once they were found.
	fs   vfs.FS
	path string
	name string        // for people
	node *datadir.Node // nil: a copy without a card
}

var sourceFlags = []flag{(*app).addrFlag, (*app).authFlags,
	exclusive("data-dir", "addr"), exclusive("archive", "addr")}

// local reports whether the log is read from files.
func (s *logSource) local() bool { return s.DataDir != "" || s.Archive != "" }

// find finds the log's files: those of the default directory if nothing is named.
func (s *logSource) find(ctx context.Context) (err error) {
	if !s.local() {
		s.DataDir = cmp.Or(s.getenv("QLOGD_DATA_DIR"), defaultDataDir)
	}
	s.fs, s.path, s.name = vfs.OS{}, s.DataDir, s.DataDir
	if s.DataDir != "" {
		if s.node, err = replay.ReadCard(s.DataDir); err != nil {
			return noDir(err)
		}
	}
	if s.Archive == "" {
		return nil
	}
	if err := archive.CheckDir(s.Archive); err != nil {
		return usagef("%w", err)
	}
	arch, err := archive.Open(vfs.OS{}, s.Archive)
	if errors.Is(err, archive.ErrNone) {
		return usagef("%w", err)
	}
	if err != nil {
		return err
	}
	if s.DataDir == "" {
		s.path, s.name = arch.String(), arch.String()
		s.node = &datadir.Node{ClusterID: arch.ClusterID(), NodeID: "archive"}
	} else {
		s.name += " behind " + arch.String()
		if n := s.node; n != nil && n.ClusterID != arch.ClusterID() &&
			(n.Fork == nil || n.Fork.ClusterID != arch.ClusterID()) {
			return usagef("the archive is of cluster %s, the data directory of cluster %s",
				arch.ClusterID(), n.ClusterID)
		}
	}
	mounted, err := arch.Mount(ctx, s.path)
	if err != nil {
		return err
	}
	if mounted.Missing != "" {
		fmt.Fprintln(s.stderr, "qlogd:", mounted.Missing)
	}
	s.fs = mounted
	return nil
}

// noDir makes a directory that does not exist a usage error.
func noDir(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("%w; name a node's data directory with --data-dir", err)
	}
	return err
}

// dir opens the files that were found, for reading their events and states.
func (s *logSource) dir() (*replay.Dir, error) {
	d, err := replay.OpenOn(s.fs, s.path, s.node)
	return d, noDir(err)
}

// open finds and opens the files.
func (s *logSource) open(ctx context.Context) (*replay.Dir, error) {
	if err := s.find(ctx); err != nil {
		return nil, err
	}
	return s.dir()
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
	if err := s.find(ctx); err != nil {
		return err
	}
	if s.node == nil || s.node.Blank() {
		return fmt.Errorf("%s does not say of which cluster it is (node.json)", s.DataDir)
	}
	d, err := s.dir()
	if err != nil {
		return err
	}
	defer d.Close()
	arch, err := archive.OpenFor(vfs.OS{}, to, s.node.ClusterID, d.Log.SegmentSize())
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
	var last []wire.LogHead // the one written last
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
			last = []wire.LogHead{*head}
		}
		if !x.Follow || ctx.Err() != nil {
			return nil
		}
		pause(ctx, x.Every)
	}
}

// newHead returns the log's head, once the log has been compared with the last one.
func (x *headExporter) newHead(ctx context.Context, last []wire.LogHead) (*wire.LogHead, error) {
	chain, d, err := x.chain(ctx)
	if err != nil {
		return nil, err
	}
	if d != nil {
		defer d.Close()
	}
	if last != nil {
		r, err := chain.Compare(ctx, last)
		if r.Deleted > 0 {
			err = nil // what retention has deleted can't be compared
		}
		return &chain.Head, err
	}
	if !x.All {
		return &chain.Head, nil
	}
	for _, s := range d.Log.Segments() {
		h, err := replay.HeadAt(d.Log, d.Node, s.Last)
		if err == nil && s.Sealed {
			err = x.wire(h)
		}
		if err != nil {
			return nil, err
		}
	}
	return &chain.Head, nil
}

// chain returns the log's chain, and the directory if it is not a server's.
func (s *logSource) chain(ctx context.Context) (c replay.Chain, d *replay.Dir, err error) {
	if s.local() {
		if d, err = s.open(ctx); err != nil {
			return c, nil, err
		}
		if c, err = d.Chain(); err != nil {
			return c, nil, errors.Join(err, d.Close())
		}
		return c, d, nil
	}
	if s.asked == nil {
		if s.asked, err = s.server(); err != nil {
			return c, nil, err
		}
	}
	head, err := s.asked.LogHead(ctx)
	c.Head = *head
	c.At = func(index uint64) (string, error) {
		h, err := s.asked.LogHead(ctx, client.At(fmt.Sprintf("index:%d", index)))
		if errors.Is(err, client.ErrHistoryExpired) {
			err = log.ErrGone
		}
		return h.ChainHash, cmp.Or(err, checkHead(h))
	}
	return c, nil, err
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
	var kept []wire.LogHead
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
		chain, _, err := v.chain(ctx)
		if err != nil {
			return refusal(err)
		}
		return v.compareHeads(ctx, chain, kept)
	}
	if err := v.find(ctx); err != nil {
		return err
	}
	if err := v.verifyDir(ctx); err != nil || v.Heads == "" {
		return err
	}
	d, err := v.dir()
	if err != nil {
		return err
	}
	defer d.Close()
	chain, err := d.Chain()
	if err != nil {
		return err
	}
	return v.compareHeads(ctx, chain, kept)
}

// checkHead checks the texts of a head.
func checkHead(h *wire.LogHead) error {
	if chain, err := hex.DecodeString(h.ChainHash); err != nil || len(chain) != 32 {
		return errors.New("chain_hash must be 64 hex digits")
	}
	if _, err := event.ParseID(h.EventID); h.EventID != "" && err != nil {
		return fmt.Errorf("event_id is %w", err)
	}
	return nil
}

// parseHeads reads what export-heads has written.
func parseHeads(name string, b []byte) (out []wire.LogHead, err error) {
	line := 0
	for text := range bytes.Lines(b) {
		if line++; len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		var h wire.LogHead
		if err := cmp.Or(json.Unmarshal(text, &h), checkHead(&h)); err != nil {
			return nil, usagef("%s:%d: not a head: %w", name, line, err)
		}
		h.ChainHash = strings.ToLower(h.ChainHash)
		out = append(out, h)
	}
	if len(out) == 0 {
		return nil, usagef("%s has no heads", name)
	}
	return out, nil
}

// compareHeads compares a chain with heads, and prints the result.
func (s *logSource) compareHeads(ctx context.Context, chain replay.Chain,
	heads []wire.LogHead) error {
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
