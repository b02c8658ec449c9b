package main

import (
	"bytes"
	"cmp"
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
	"github.com/qlogd/qlogd/background/verify"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

var logCommands = group("log",
	plain("log export-heads", exportHeads, sourceFlags...),
	local("log verify", verifyLog, sourceFlags...),
	local("log segments", func(c request, s *logSource) error {
		out, err := s.segments(c)
		if err == nil && c.output == "json" {
			return c.wire(out)
		}
		return list(c.app, out.Segments, err, "segment,first,last,bytes,state,last time,chain",
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
	}, sourceFlags...),
	local("log archive", archiveLog),
)

// logSource is where a command reads a log: a data directory, an archive, an archive before a data
// directory, or a server.
type logSource struct {
	DataDir, Archive string
	asked            *client.Client // the server, once it was asked

	// Of files, once they were found.
	fs   vfs.FS
	path string
	name string        // for people
	node *datadir.Node // blank: a copy without a card
}

var sourceFlags = []flag{(*app).addrFlag, (*app).authFlags,
	exclusive("data-dir", "addr"), exclusive("archive", "addr")}

// local reports whether the log is read from files.
func (s *logSource) local() bool { return s.DataDir != "" || s.Archive != "" }

// find finds the log's files: those of the default directory if nothing is named.
func (s *logSource) find(c request) (err error) {
	if !s.local() {
		s.DataDir = cmp.Or(c.getenv("QLOGD_DATA_DIR"), defaultDataDir)
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
		if n := s.node; n.NodeID != "" && n.ClusterID != arch.ClusterID() &&
			(n.Fork == nil || n.Fork.ClusterID != arch.ClusterID()) {
			return usagef("the archive is of cluster %s, the data directory of cluster %s",
				arch.ClusterID(), n.ClusterID)
		}
	}
	mounted, err := arch.Mount(c.ctx, s.path)
	if err != nil {
		return err
	}
	if mounted.Missing != "" {
		fmt.Fprintln(c.stderr, "qlogd:", mounted.Missing)
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

// dir opens the files that were found, for reading their events and states: all, or also of a
// damaged log what is before the damage.
func (s *logSource) dir(toDamage bool) (*replay.Dir, error) {
	d, err := replay.OpenOn(s.fs, s.path, s.node, toDamage)
	return d, noDir(err)
}

// open finds and opens the files.
func (s *logSource) open(c request) (*replay.Dir, error) {
	if err := s.find(c); err != nil {
		return nil, err
	}
	return s.dir(false)
}

func (s *logSource) segments(c request) (out wire.LogSegments, err error) {
	if !s.local() {
		err := c.ask(func(c request) error {
			segments, err := c.LogSegments(c.ctx, client.Stale())
			out = *segments
			return err
		})
		return out, err
	}
	d, err := s.open(c)
	if err != nil {
		return out, err
	}
	defer d.Close()
	return replay.Segments(d.Log, d.Node), nil
}

func archiveLog(c request, f *struct {
	DataDir, To string
	Refresh     bool
}) error {
	if f.To == "" {
		return usagef("--to is needed: DIR")
	}
	if err := archive.CheckDir(f.To); err != nil {
		return usagef("%w", err)
	}
	s := &logSource{DataDir: f.DataDir}
	if err := s.find(c); err != nil {
		return err
	}
	if s.node.Blank() {
		return fmt.Errorf("%s does not say of which cluster it is (node.json)", s.DataDir)
	}
	d, err := s.dir(false)
	if err != nil {
		return err
	}
	defer d.Close()
	arch, err := archive.OpenFor(vfs.OS{}, f.To, s.node.ClusterID, d.Log.SegmentSize())
	if err != nil {
		return err
	}
	bar := c.progress("archiving", true)
	w, err := arch.Write(c.ctx, archive.Source{
		FS: d.FS, LogDir: d.LogDir(), Checkpoints: d.Checkpoints, Segments: d.Log.Segments(),
		RefreshErased: f.Refresh,
	}, bar.set)
	bar.done()
	body := struct {
		To string `json:"to"`
		archive.Written
	}{arch.String(), w}
	return c.answer(named{"archive": body}, err,
		"%s and %s (%s) archived to %s; it has all up to index:%d",
		plural(w.Segments+w.Refreshed, "segment", "segments"),
		plural(w.Checkpoints, "checkpoint", "checkpoints"),
		humanize.IBytes(uint64(w.Bytes)), arch, w.UpTo)
}

func exportHeads(c request, f *struct {
	logSource
	All, Follow bool
	Every       time.Duration `default:"1m"`
}) error {
	if f.Every < 100*time.Millisecond {
		return usagef("--every must be at least 100ms")
	}
	if f.All && !f.local() {
		return usagef("--all needs --data-dir or --archive")
	}
	var last []wire.LogHead // the one written last
	for {
		head, err := f.newHead(c, last, f.All)
		switch {
		case errors.As(err, new(*replay.Difference)):
			return &exitError{exitDifference, err}
		case err != nil && (!f.Follow || last == nil):
			return c.refusal(err)
		case err != nil:
			if c.ctx.Err() == nil {
				fmt.Fprintln(c.stderr, "qlogd:", err, "(trying again)")
			}
		case last == nil || head.Index > last[0].Index:
			if err := c.wire(head); err != nil {
				return err
			}
			last = []wire.LogHead{*head}
		}
		if !f.Follow || c.ctx.Err() != nil {
			return nil
		}
		pause(c.ctx, f.Every)
	}
}

// newHead returns the log's head, once the log has been compared with the last one. Without
// one it may print the heads of all sealed segments.
func (s *logSource) newHead(c request, last []wire.LogHead, all bool) (*wire.LogHead, error) {
	chain, d, err := s.chain(c)
	if err != nil {
		return nil, err
	}
	if d != nil {
		defer d.Close()
	}
	if last != nil {
		r, err := chain.Compare(c.ctx, last)
		if r.Deleted > 0 {
			err = nil // what retention has deleted can't be compared
		}
		return &chain.Head, err
	}
	if !all {
		return &chain.Head, nil
	}
	for _, g := range d.Log.Segments() {
		h, err := replay.HeadAt(d.Log, d.Node, g.Last)
		if err == nil && g.Sealed {
			err = c.wire(h)
		}
		if err != nil {
			return nil, err
		}
	}
	return &chain.Head, nil
}

// chain returns the log's chain, and the directory if it is not a server's.
func (s *logSource) chain(c request) (of replay.Chain, d *replay.Dir, err error) {
	if s.local() {
		if d, err = s.open(c); err != nil {
			return of, nil, err
		}
		if of, err = d.Chain(); err != nil {
			return of, nil, errors.Join(err, d.Close())
		}
		return of, d, nil
	}
	if s.asked == nil {
		if s.asked, err = c.server(); err != nil {
			return of, nil, err
		}
	}
	head, err := s.asked.LogHead(c.ctx)
	of.Head = *head
	of.At = func(index uint64) (string, error) {
		h, err := s.asked.LogHead(c.ctx, client.At(fmt.Sprintf("index:%d", index)))
		if errors.Is(err, client.ErrHistoryExpired) {
			err = log.ErrGone
		}
		return h.ChainHash, cmp.Or(err, checkHead(h))
	}
	return of, nil, err
}

func verifyLog(c request, f *struct {
	logSource
	Heads string
}) error {
	var kept []wire.LogHead
	if f.Heads != "" {
		b, err := c.readInput(f.Heads)
		if err != nil {
			return err
		}
		if kept, err = parseHeads(f.Heads, b); err != nil {
			return err
		}
	}
	if c.reach.Addr != "" {
		if f.Heads == "" {
			return usagef("--addr needs --heads: only a data directory can be checked by itself")
		}
		chain, _, err := f.chain(c)
		if err != nil {
			return c.refusal(err)
		}
		return c.compareHeads(chain, kept)
	}
	if err := f.find(c); err != nil {
		return err
	}
	if err := f.verifyDir(c); err != nil || f.Heads == "" {
		return err
	}
	d, err := f.dir(false)
	if err != nil {
		return err
	}
	defer d.Close()
	chain, err := d.Chain()
	if err != nil {
		return err
	}
	return c.compareHeads(chain, kept)
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

// torn warns of a log's tail, and says what that means.
func (a *app) torn(t *log.Tail, so string) {
	fmt.Fprintf(a.stderr, "qlogd: the log's tail is torn or still being written: "+
		"%s after offset %d of %s (%s); %s\n",
		plural(t.Bytes, "byte", "bytes"), t.Offset, t.Segment, t.Reason, so)
}

// compareHeads compares a chain with heads, and prints the result.
func (c request) compareHeads(chain replay.Chain, heads []wire.LogHead) error {
	r, err := chain.Compare(c.ctx, heads)
	diff, different := errors.AsType[*replay.Difference](err)
	if err != nil && !different {
		return c.refusal(err)
	}
	v := struct {
		OK     bool               `json:"ok"`
		Report replay.HeadsReport `json:",embed"`
		// Of a difference: the first block that is wrong, and how.
		WrongIndex uint64 `json:"wrong_index,omitzero"`
		Difference string `json:"difference,omitzero"`
	}{OK: !different, Report: r}
	if different {
		v.WrongIndex, v.Difference = diff.Index, diff.Error()
	}
	text := fmt.Sprintf("%s: %d agree, the newest at index:%d",
		plural(r.Heads, "head", "heads"), r.Equal, r.Newest)
	if r.Deleted > 0 {
		text += fmt.Sprintf("; %d are of history that retention has deleted", r.Deleted)
	}
	if c.output == "json" || !different {
		if err := c.say(named{"heads": v}, "%s", text); err != nil {
			return err
		}
	}
	if different {
		return exitf(exitDifference, "the heads show a difference: %w", diff)
	}
	return nil
}

// verifyDir checks the whole of a data directory.
func (s *logSource) verifyDir(c request) error {
	bar := c.progress("verifying", true)
	report, err := replay.Verify(c.ctx, s.fs, s.path, s.node, bar.set)
	bar.done()
	if t := report.Log.Tail; t != nil {
		c.torn(t, "this is no difference")
	}
	if n := s.node; n != nil && n.Fork != nil && len(n.Fork.Lost) > 0 {
		fmt.Fprintln(c.stderr, "history is incomplete: "+lostText(n.Fork.Lost))
	}
	found, err := verify.Result(report, err)
	switch {
	case err != nil:
		return err
	case c.output == "json":
		err = c.wire(named{"verify": found})
	case found.OK:
		err = c.show(nil, nil, "verified", s.name, verifiedRows(found))
	}
	return cmp.Or(err, differs(found))
}

// verifiedRows describe what a verification has read.
func verifiedRows(v *wire.Verified) [][]any {
	checkpoints := fmt.Sprint(v.Checkpoints)
	if v.OK {
		checkpoints += ", all equal to the fold"
	}
	return [][]any{
		{"indexes", fmt.Sprintf("%d to %d", v.FirstIndex, v.Index)},
		{"chain", v.ChainHash}, {"segments", v.Segments},
		{"blocks", humanize.Comma(v.Blocks)}, {"events", humanize.Comma(v.Events)},
		{"bytes", humanize.IBytes(uint64(v.Bytes))}, {"erased contents", v.Erased},
		{"checkpoints", checkpoints},
		{"log's clock", onlyIf(v.Time > 0, v.Time.String())}, {"wrong", optional(v.Difference)},
	}
}

// differs returns the difference that a verification has found, if any.
func differs(v *wire.Verified) error {
	if v == nil || v.OK {
		return nil
	}
	where := ""
	if v.WrongIndex > 0 {
		where = fmt.Sprintf(" (first wrong: index:%d)", v.WrongIndex)
	}
	return exitf(exitDifference, "verification found a difference%s: %s", where, v.Difference)
}
