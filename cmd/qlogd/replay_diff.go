package main

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/replay"
)

// verifyDir checks the whole of a data directory.
func (s *logSource) verifyDir(c request) error {
	bar := c.progress("verifying", true)
	report, err := replay.Verify(c.ctx, s.fs, s.path, s.node, bar.set)
	bar.done()
	diff, different := errors.AsType[*replay.Difference](err)
	if err != nil && !different {
		return err
	}
	l := report.Log
	body := struct {
		OK          bool   `json:"ok"`
		Index       uint64 `json:"index"`
		ChainHash   string `json:"chain_hash"`
		First       uint64 `json:"first_index"`
		Segments    int    `json:"segments"`
		Blocks      int64  `json:"blocks"`
		Events      int64  `json:"events"`
		Erased      int64  `json:"erased"`
		Bytes       int64  `json:"bytes"`
		Checkpoints int    `json:"checkpoints"`
		TornBytes   int64  `json:"torn_bytes,omitzero"`
		// Of a difference: the first block that is wrong, and how.
		WrongIndex uint64 `json:"wrong_index,omitzero"`
		Difference string `json:"difference,omitzero"`
	}{
		OK: !different, Index: l.Last, ChainHash: hex.EncodeToString(l.Chain[:]), First: l.First,
		Segments: l.Segments, Blocks: l.Blocks, Events: l.Records, Erased: l.Erased, Bytes: l.Bytes,
		Checkpoints: report.Checkpoints,
	}
	if t := l.Tail; t != nil {
		body.TornBytes = t.Bytes
		fmt.Fprintf(c.stderr, "qlogd: the log's tail is torn or still being written: "+
			"%s after offset %d of %s (%s); this is no difference\n",
			plural(t.Bytes, "byte", "bytes"), t.Offset, t.Segment, t.Reason)
	}
	if !different {
		return c.show(named{"verify": body}, nil, "verified", s.name, [][]any{
			{"indexes", fmt.Sprintf("%d to %d", l.First, l.Last)}, {"chain", body.ChainHash},
			{"segments", l.Segments}, {"blocks", humanize.Comma(l.Blocks)},
			{"events", humanize.Comma(l.Records)},
			{"bytes", humanize.IBytes(uint64(l.Bytes))}, {"erased contents", l.Erased},
			{"checkpoints", fmt.Sprintf("%d, all equal to the fold", report.Checkpoints)},
			{"log's clock", wire.Time(report.State.Clock()).String()},
		})
	}
	body.WrongIndex, body.Difference = diff.Index, diff.Error()
	if c.output == "json" {
		if err := c.wire(named{"verify": body}); err != nil {
			return err
		}
	}
	where := ""
	if diff.Index > 0 {
		where = fmt.Sprintf(" (first wrong: index:%d)", diff.Index)
	}
	return exitf(exitDifference, "verification found a difference%s: %w", where, diff)
}

// diffBody is a line of --diff with --output json. A queue's has no message_id, and a queueSide
// before and after; a message's has a messageSide.
type diffBody struct {
	Queue     string `json:"queue"`
	MessageID string `json:"message_id,omitzero"`
	Before    any    `json:"before"`
	After     any    `json:"after"`
}

// compare orders queues by name before messages by id.
func (b *diffBody) compare(o *diffBody) int {
	return cmp.Or(cmp.Compare(b.MessageID, o.MessageID), cmp.Compare(b.Queue, o.Queue))
}

type queueSide struct {
	Paused    bool       `json:"paused"`
	CreatedAt wire.Time  `json:"created_at"`
	UpdatedAt wire.Time  `json:"updated_at"`
	Stats     wire.Stats `json:"stats"`
}

type messageSide struct {
	State          string    `json:"state"`
	Held           bool      `json:"held,omitzero"`
	Reason         string    `json:"reason,omitzero"`
	Key            string    `json:"key,omitzero"`
	Attempt        uint32    `json:"attempt"`
	AvailableAt    wire.Time `json:"available_at,omitzero"`
	LeaseID        string    `json:"lease_id,omitzero"`
	LeaseExpiresAt wire.Time `json:"lease_expires_at,omitzero"`
	LeftAt         wire.Time `json:"left_at,omitzero"`
	ToQueue        string    `json:"to_queue,omitzero"`
	NewMessageID   string    `json:"new_message_id,omitzero"`
}

// changes prints what changed between the two instants.
func (r *replayer) changes(d *replay.Dir) error {
	var queues, messages int
	bar := r.progress("folding", true)
	cost, err := d.Diff(r.ctx, r.from, r.to, r.filter, func(c *replay.Change) error {
		bar.done()
		if c.Message != (event.ID{}) {
			messages++
		} else {
			queues++
		}
		return r.change(c)
	})
	bar.done()
	if err != nil || r.output == "json" {
		return err
	}
	fmt.Fprintf(r.stdout, "%s and %s changed\n",
		plural(queues, "queue", "queues"), plural(messages, "message", "messages"))
	fmt.Fprintf(r.stderr, "%s folded\n", plural(int64(cost.Blocks), "block", "blocks"))
	return nil
}

// change prints a queue or a message that differs.
func (r *replayer) change(c *replay.Change) error {
	body := diffBody{Queue: c.Queue}
	if c.Message != (event.ID{}) {
		body.MessageID = c.Message.String()
		body.Before, body.After = messageSideOf(c.Before), messageSideOf(c.After)
	} else {
		body.Before = queueSideOf(c.QueueBefore, c.ClockBefore)
		body.After = queueSideOf(c.QueueAfter, c.ClockAfter)
	}
	return r.difference(body)
}

// difference prints one line of a diff.
func (r *replayer) difference(body diffBody) error {
	if r.output == "json" {
		return r.wire(named{"diff": body})
	}
	_, err := fmt.Fprintf(r.stdout, "%-20s  %-26s  %s → %s\n",
		body.Queue, cmp.Or(body.MessageID, "queue"), sideText(body.Before), sideText(body.After))
	return err
}

func queueSideOf(q *event.QueueView, clock int64) any {
	if q == nil {
		return nil
	}
	stats := api.StatsOf(&q.Stats, clock)
	return queueSide{q.Paused, wire.Time(q.CreatedAt), wire.Time(q.UpdatedAt), stats}
}

func messageSideOf(f *replay.Fate) any {
	if f == nil {
		return nil
	}
	s := messageSide{State: f.State.String(), Held: f.Held, Key: f.Key, Attempt: f.Attempt}
	if f.State == event.StateScheduled {
		s.AvailableAt = wire.Time(f.Due)
	}
	if f.State == event.StateLeased {
		s.LeaseID, s.LeaseExpiresAt = f.Lease.String(), wire.Time(f.LeaseExpiresAt)
	}
	if e := f.Left; e != nil {
		s.LeftAt, s.Reason = wire.Time(event.ClockOf(e.ID)), e.Reason.String()
		if e.ToQueue != "" {
			s.ToQueue, s.NewMessageID = e.ToQueue, e.ID.String()
		}
	}
	return s
}

func sideText(v any) string {
	switch s := v.(type) {
	case queueSide:
		t := s.Stats
		text := fmt.Sprintf("depth %d, scheduled %d, in flight %d, enqueued %d, acked %d, dead %d",
			t.Depth, t.Scheduled, t.InFlight, t.EnqueuedTotal, t.AckedTotal, t.DeadLetteredTotal)
		if s.Paused {
			text += ", paused"
		}
		return text
	case messageSide:
		text := s.State
		if s.Held {
			text += " (held)"
		}
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		if s.Attempt > 0 {
			text += fmt.Sprintf(", attempt %d", s.Attempt)
		}
		if s.ToQueue != "" {
			text += ", to " + s.ToQueue
		}
		return text
	}
	return "nothing"
}

// compare compares the log with another node's, or with a live state.
func (r *replayer) compare(d *replay.Dir) (err error) {
	var body *replay.Comparison
	if strings.HasPrefix(r.Against, "http://") || strings.HasPrefix(r.Against, "https://") {
		body, err = r.againstLive()
	} else {
		other, oerr := (&logSource{DataDir: r.Against}).open(r.request)
		if oerr != nil {
			return oerr
		}
		defer other.Close()
		body, err = d.Compare(r.ctx, other, r.to, r.filter, r.change)
	}
	if err != nil {
		return err
	}
	text := "the logs are the same"
	if !body.SameLog {
		text = fmt.Sprintf("the logs agree up to index:%d and part at index:%d",
			body.AgreeUpTo, body.Parted)
	}
	text += fmt.Sprintf("; compared at index:%d (%d here, %d there): %s", body.Index, body.Head,
		body.OtherHead, plural(body.Changes, "difference", "differences"))
	if body.InMotion > 0 {
		text += fmt.Sprintf(", %d changed meanwhile and left out", body.InMotion)
	}
	if err := r.say(named{"compare": body}, "%s", text); err != nil {
		return err
	}
	if !body.SameLog || !body.SameState {
		return exitf(exitDifference, "%s differs from %s", r.name, r.Against)
	}
	return nil
}

// diffBodies are the lines of queues and messages, by both names.
type diffBodies map[[2]string]*diffBody

// of returns the line of a queue or, with an id, of a message in it.
func (all diffBodies) of(queue, message string) *diffBody {
	names := [2]string{queue, message}
	if all[names] == nil {
		all[names] = &diffBody{Queue: queue, MessageID: message}
	}
	return all[names]
}

// live adds a server's queues and messages, as after, and returns the heads of its log before
// and after.
func (all diffBodies) live(c request) (before, after *wire.LogHead, err error) {
	if before, err = c.LogHead(c.ctx); err != nil {
		return nil, nil, err
	}
	queues, err := c.Queues(c.ctx, "")
	if err != nil {
		return nil, nil, err
	}
	for _, q := range queues {
		all.of(q.Name, "").After = queueSide{q.Paused, q.CreatedAt, q.UpdatedAt, q.Stats}
		for m, err := range c.AllMessages(c.ctx, q.Name, client.MessageQuery{Limit: 1000}) {
			if err != nil {
				return nil, nil, err
			}
			body := messageSide{
				State: m.State, Held: m.Held, Key: m.Key, Attempt: uint32(m.Attempt),
				LeaseID: m.LeaseID, LeaseExpiresAt: m.LeaseExpiresAt,
			}
			if m.State == event.StateScheduled.String() {
				body.AvailableAt = m.AvailableAt
			}
			all.of(m.Queue, m.ID).After = body
		}
	}
	after, err = c.LogHead(c.ctx)
	return before, after, err
}

// againstLive compares the fold of the log with a running server's answers. The directory must be a
// running node's. What changed between the first answer and the last is left out.
func (r *replayer) againstLive() (*replay.Comparison, error) {
	r.reach.addr = r.Against
	all := diffBodies{}
	var before, after *wire.LogHead
	err := r.ask(func(c request) (err error) {
		before, after, err = all.live(c)
		return err
	})
	if err != nil {
		return nil, err
	}
	d, err := r.dir() // opened again: the directory has moved on, too
	if err != nil {
		return nil, err
	}
	defer d.Close()
	index := after.Index
	body := &replay.Comparison{Index: index, Head: d.Log.Head(), OtherHead: index, AgreeUpTo: index}
	if body.Head < index {
		return nil, usagef("the log ends at index:%d, the server is at index:%d already: "+
			"give the data directory of a node of its cluster that runs", body.Head, index)
	}
	chain, err := d.Log.ChainAt(index)
	if err != nil {
		return nil, err
	}
	if body.SameLog = hex.EncodeToString(chain[:]) == after.ChainHash; !body.SameLog {
		body.AgreeUpTo, body.Parted = 0, index
		fmt.Fprintf(r.stderr, "qlogd: at index:%d the chain is %x… here and %.16s… there: "+
			"another cluster's, or rewritten\n", index, chain[:8], after.ChainHash)
		return body, nil
	}
	moving, movingQueues, err := d.InMotion(r.ctx, before.Index+1, index)
	if err != nil {
		return nil, err
	}
	state, _, err := d.StateAt(r.ctx, event.Instant{Kind: event.InstantIndex, Index: index})
	if err != nil {
		return nil, err
	}
	for _, q := range state.Queues() {
		all.of(q.Name, "").Before = queueSideOf(&q, state.Clock())
	}
	for m := range state.All {
		all.of(m.Queue, m.ID.String()).Before = messageSideOf(&replay.Fate{MessageView: m})
	}
	body.InMotion = len(moving)
	for _, l := range slices.SortedFunc(maps.Values(all), (*diffBody).compare) {
		inMotion := movingQueues[l.Queue]
		excluded := moving[l.MessageID] || l.MessageID == "" && inMotion ||
			r.filter.Queue != "" && r.filter.Queue != l.Queue ||
			l.MessageID != "" && r.Message != "" && r.filter.Message.String() != l.MessageID
		if excluded || steady(l.Before, inMotion) == steady(l.After, inMotion) {
			continue
		}
		body.Changes++
		if err := r.difference(*l); err != nil {
			return nil, err
		}
	}
	body.SameState = body.Changes == 0
	return body, nil
}

// steady returns a side without what changes with the moment: ages and rates of a queue, and
// whether a message is held, if its queue is moving.
func steady(body any, moving bool) any {
	switch s := body.(type) {
	case queueSide:
		s.Stats.OldestMessageAgeSeconds, s.Stats.MessagesPerMinute = 0, nil
		return s
	case messageSide:
		s.Held = s.Held && !moving
		return s
	}
	return nil
}

// search finds the first event after which a predicate holds.
func (r *replayer) search(d *replay.Dir) error {
	p, err := replay.CompilePredicate(r.Bisect)
	if err != nil {
		return usagef("--bisect: %w\nit can be about\n\n%s", err, replay.PredicateHelp)
	}
	bar := r.progress("searching", true)
	t, err := d.Bisect(r.ctx, r.from, r.to, p, r.Exhaustive, bar.set)
	bar.done()
	if err != nil {
		return err
	}
	body := struct {
		Found   bool        `json:"found"`
		Already bool        `json:"already"` // it held at --from
		Index   uint64      `json:"index,omitzero"`
		Time    wire.Time   `json:"time"`
		Event   *wire.Event `json:"event"` // null if only time passed
		replay.BisectCost
	}{t.Found, t.Already, t.Index, wire.Time(t.Clock), nil, t.Cost}
	what := "by the passing of time alone"
	if t.Event != nil {
		e := api.EventOf(t.Event)
		body.Event = &e
		what = fmt.Sprintf("with %s %s of %s %s %s",
			e.Type, e.EventID, e.Queue, e.MessageID, short(eventText(&e), 160))
	}
	if t.Already {
		what = "which is --from: it holds from the beginning on"
	}
	if r.output == "json" || t.Found {
		err := r.say(named{"bisect": body},
			"holds after index:%d at %s, %s", t.Index, body.Time, what)
		if err != nil {
			return err
		}
	}
	if r.output != "json" && t.Found {
		fmt.Fprintf(r.stderr, "%s examined, %s folded, asked %s\n",
			plural(t.Cost.Checkpoints, "checkpoint", "checkpoints"),
			plural(int64(t.Cost.Blocks), "block", "blocks"), plural(t.Cost.Asked, "time", "times"))
	}
	if t.Found {
		return nil
	}
	hint := ""
	if !r.Exhaustive {
		hint = "; it may have held in between: --exhaustive looks at every entry"
	}
	return errors.New("the predicate does not hold at --to" + hint)
}

// copyInto writes a new data directory that holds the state as of --to.
func (r *replayer) copyInto(d *replay.Dir) error {
	bar := r.progress("copying", true)
	var copied int64
	node, err := d.Into(r.ctx, r.to, r.Into, seed, func(done, total int64) {
		copied = done
		bar.set(done, total)
	})
	bar.done()
	if err != nil {
		return err
	}
	f := node.Fork
	body := struct {
		DataDir   string    `json:"data_dir"`
		ClusterID string    `json:"cluster_id"`
		At        wire.Time `json:"at"`
		Index     uint64    `json:"index"`
		ChainHash string    `json:"chain_hash"`
	}{r.Into, node.ClusterID, wire.TimeOf(f.At), f.Index, f.ChainHash}
	return r.say(named{"into": body},
		"%s holds the state at %s (index:%d, chain %.16s…), %s of log, as cluster %s\n"+
			"serve it beside the other node: "+
			"qlogd serve --data-dir %s --http-addr 127.0.0.1:8070 --raft-addr 127.0.0.1:8071",
		r.Into, body.At, f.Index, f.ChainHash, humanize.IBytes(uint64(copied)),
		node.ClusterID, r.Into)
}

// seed gives a new data directory its Raft store: replay does not know Raft.
func seed(dir string, node *datadir.Node, meta checkpoint.Meta, body io.WriterTo) error {
	return raft.Seed(raft.Options{
		Node: *node, FS: vfs.OS{},
		Dir:           datadir.Path(dir, datadir.RaftDir),
		CheckpointDir: datadir.Path(dir, datadir.CheckpointDir),
	}, meta, body)
}
