package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/replay"
)

// replayer runs qlogd replay once.
type replayer struct {
	request
	logSource
	FromText string `flag:"from" default:"start"`
	ToText   string `flag:"to" default:"now"`
	Message  string
	eventLabels
	Verify, Diff, Exhaustive bool
	Salvage                  bool
	Into, WhatIf             string
	Against, Bisect          string
	Tolerance                time.Duration `default:"1s"`

	from, to    event.Instant
	first, last uint64 // the indexes of from and to
	filter      replay.Filter
	printed     int // events
}

var replayCommand = local("replay", func(c request, r *replayer) error {
	// Buffered, but also after an error output ends with a whole line.
	buffered := *c.app
	out := bufio.NewWriterSize(c.stdout, 64<<10)
	bar := !terminal(c.stdout)
	buffered.stdout, c.app = out, &buffered
	r.request = c
	return errors.Join(r.run(bar), out.Flush())
}, append(sourceFlags, exclusive("verify", "diff", "into", "what-if", "bisect"))...)

// run does what the flags say; bar shows progress also while lines are printed.
func (r *replayer) run(bar bool) error {
	// The command line is checked before anything is opened.
	if err := r.parse(); err != nil {
		return err
	}
	if r.reach.Addr != "" {
		return r.ask(func(c request) error {
			r.request = c
			err := r.askPast()
			if errors.Is(err, client.ErrHistoryExpired) {
				return usagef("%w", err)
			}
			return err
		})
	}
	if err := r.find(r.request); err != nil {
		return err
	}
	// The clock of a copy of the past is behind the wall clock, and so are its durations.
	if r.node != nil && r.node.ClockOffsetMS != 0 {
		if err := r.parse(); err != nil {
			return err
		}
	}
	if r.Salvage {
		return instantError(r.salvage())
	}
	if r.Verify {
		return r.verifyDir(r.request)
	}
	d, err := r.dir(true)
	if err != nil {
		return err
	}
	defer d.Close()
	// A torn tail is no error: a live node is writing it, or a crash tore an entry that Raft
	// applies again.
	if t := d.Log.Tail(); t != nil {
		r.torn(t, fmt.Sprintf("read is all up to index:%d", t.LastGood))
	}
	if err := r.order(d.Log); err != nil {
		return err
	}
	switch {
	case r.WhatIf != "":
		err = r.playWhatIf(d)
	case r.Against != "":
		err = r.compare(d)
	case r.Bisect != "":
		err = r.search(d)
	case r.Diff:
		err = r.changes(d)
	case r.Into != "":
		err = r.copyInto(d)
	default:
		err = r.events(d, bar)
	}
	return instantError(err)
}

func (r *replayer) parse() (err error) {
	given := r.flags.Changed
	more := r.Verify || !r.lists() // than to print events
	switch {
	case given("into") && r.Into == "":
		return usagef("--into must name a directory")
	case r.Into != "" && (given("from") || given("queue") || given("message")):
		return usagef("--into copies the whole log up to --to: give no --from, --queue or --message")
	case r.Against != "" && !r.Diff:
		return usagef("--against goes with --diff")
	case r.Salvage && r.Into == "":
		return usagef("--salvage goes with --into")
	case r.Salvage && (r.reach.Addr != "" || r.Archive != ""):
		return usagef("--salvage reads a data directory: give --data-dir alone")
	case r.labelled() && more:
		return usagef("--type, --actor, --worker, --key, --kind and --correlation-id select the " +
			"events to print: give them alone")
	case r.labelled() && r.Message != "" && r.reach.Addr != "":
		return usagef("--message and --addr print all of a message's history: give no --type, " +
			"--actor, --worker, --key, --kind or --correlation-id")
	case r.Exhaustive && r.Bisect == "":
		return usagef("--exhaustive goes with --bisect")
	case r.reach.Addr != "" && more:
		return usagef("--verify, --diff, --bisect, --into and --what-if read a data directory: " +
			"give --data-dir in place of --addr")
	}
	now := time.Now().UnixMilli()
	if r.node != nil {
		now += r.node.ClockOffsetMS
	}
	if r.from, err = event.ParseInstant(r.FromText, now); err != nil {
		return usagef("--from: %w", err)
	}
	if r.to, err = event.ParseInstant(r.ToText, now); err != nil {
		return usagef("--to: %w", err)
	}
	if r.Message != "" {
		if r.filter.Message, err = event.ParseID(r.Message); err != nil {
			return usagef("--message: %.64q is %w", r.Message, err)
		}
	}
	if r.Queue != "" && !event.ValidName(r.Queue) {
		return usagef("--queue: %.64q can't be a queue's name", r.Queue)
	}
	r.filter.Filter, err = r.eventLabels.filter()
	return err
}

// lists reports whether events are printed, and nothing is compared or copied.
func (r *replayer) lists() bool {
	return r.WhatIf == "" && r.Bisect == "" && !r.Diff && r.Into == ""
}

// order returns a usage error for a range that ends before it begins.
func (r *replayer) order(l *log.Log) (err error) {
	if r.first, err = l.From(r.from); r.lists() && errors.Is(err, log.ErrGone) {
		// What is left is printed, and where it begins.
		r.from = event.Instant{Kind: event.InstantStart}
		r.first, err = l.From(r.from)
	}
	if err != nil {
		return instantError(fmt.Errorf("--from: %w", err))
	}
	if r.last, err = l.To(r.to); err != nil {
		return instantError(fmt.Errorf("--to: %w", err))
	}
	// A time before which nothing happened is no mistake; one after --to is, and so is an entry
	// after it.
	timed := r.from.Kind == event.InstantTime
	after := r.first > r.last &&
		(r.from.Kind == event.InstantIndex || r.from.Kind == event.InstantID) ||
		timed && r.to.Kind == event.InstantTime && r.from.Time > r.to.Time ||
		timed && r.first > r.last+1
	if after && r.Into == "" {
		return usagef("--from %s is after --to %s", r.FromText, r.ToText)
	}
	return nil
}

// instantError makes an instant outside the log a usage error.
func instantError(err error) error {
	if log.IsRange(err) || errors.Is(err, replay.ErrTarget) {
		return usagef("%w", err)
	}
	return err
}

// named is a line of --output json: an object with one member.
type named map[string]any

// stateBody is the last line: the state at --to.
type stateBody struct {
	At        wire.Time             `json:"at"`
	Index     uint64                `json:"index"`
	ChainHash string                `json:"chain_hash"`
	Queues    map[string]wire.Stats `json:"queues"`

	// Some of the events are older, or have a label that is.
	HistoryBeginsAt *wire.Time `json:"history_begins_at,omitzero"`
}

// events prints every event between the two instants, and the state at the last.
func (r *replayer) events(d *replay.Dir, bar bool) error {
	reading := r.progress("reading", bar)
	for e, err := range d.Events(r.ctx, r.first, r.last, &r.filter) {
		if err == nil {
			reading.set(int64(event.RefOf(e.ID).Index), int64(d.Log.Head()))
			err = r.event(api.EventOf(e))
		}
		if err != nil {
			reading.done()
			return err
		}
	}
	reading.done()
	state, cost, err := d.StateAt(r.ctx, r.to)
	if err != nil {
		return err
	}
	for _, err := range cost.Skipped {
		fmt.Fprintln(r.stderr, "qlogd: skipped:", err)
	}
	chain, err := d.Log.ChainAt(r.last)
	if err != nil {
		return err
	}
	body := stateBody{
		At: wire.Time(state.Clock()), Index: state.Index(), ChainHash: event.Chain(chain).String(),
		Queues: map[string]wire.Stats{},
	}
	for _, q := range state.Queues() {
		if r.filter.Queue == "" || r.filter.Queue == q.Name {
			body.Queues[q.Name] = api.StatsOf(&q.Stats, state.Clock())
		}
	}
	if before, clock := d.Log.Begins(); before > 0 &&
		(r.filter.Lost || r.from.Kind == event.InstantStart || r.first <= before) {
		body.HistoryBeginsAt = new(wire.Time(clock))
	}
	from := "the start"
	if cost.Checkpoint > 0 {
		from = fmt.Sprintf("the checkpoint at index:%d", cost.Checkpoint)
	}
	r.note("state folded from %s: %s, %s", from, plural(int64(cost.Blocks), "block", "blocks"),
		plural(int64(cost.Events), "event", "events"))
	if d.Node.Fork != nil && len(d.Node.Fork.Lost) > 0 {
		fmt.Fprintln(r.stderr, "history is incomplete: "+lostText(d.Node.Fork.Lost))
	}
	return r.state(&body)
}

// event prints one event. Its columns are fixed: a log is too long to wait for
// the widths of a table.
func (r *replayer) event(e wire.Event) error {
	if r.output == "json" {
		return r.wire(named{"event": e})
	}
	if r.printed == 0 {
		fmt.Fprintf(r.stdout, "%-24s  %-8s  %-15s  %-20s  %-26s  %s\n",
			"TIME", "INDEX", "TYPE", "QUEUE", "MESSAGE", "WHAT")
	}
	r.printed++
	_, err := fmt.Fprintf(r.stdout, "%-24s  %-8d  %-15s  %-20s  %-26s  %s\n",
		e.Time, e.Index, e.Type, e.Queue, e.MessageID, short(eventText(&e), 160))
	return err
}

// state prints the state at the end of a replay.
func (r *replayer) state(body *stateBody) error {
	if r.output == "json" {
		return r.wire(named{"state": body})
	}
	if r.printed > 0 {
		fmt.Fprintln(r.stdout)
	}
	text := fmt.Sprintf("%s, state at %s", plural(r.printed, "event", "events"), body.At)
	if body.Index > 0 {
		text += fmt.Sprintf(" (index:%d, chain %.16s…)", body.Index, body.ChainHash)
	}
	fmt.Fprintln(r.stdout, text)
	if body.HistoryBeginsAt != nil {
		fmt.Fprintf(r.stdout, "history begins at %s: retention has deleted what was before\n",
			body.HistoryBeginsAt)
	}
	if len(body.Queues) == 0 {
		_, err := fmt.Fprintln(r.stdout, "no queues")
		return err
	}
	return list(r.app, sortedKeys(body.Queues), nil,
		"queue,depth,held,scheduled,in flight,bytes,enqueued,acked,dead",
		func(name *string) []any {
			s := body.Queues[*name]
			return []any{*name, s.Depth, s.Held, s.Scheduled, s.InFlight,
				humanize.IBytes(uint64(s.Bytes)), s.EnqueuedTotal, s.AckedTotal,
				s.DeadLetteredTotal}
		})
}

// askPast prints the past that a server answers: its events, and its queues as they were.
func (r *replayer) askPast() error {
	// All requests must be about the same instant: now and durations move on.
	from, to := r.FromText, r.ToText
	if r.from.Kind == event.InstantTime {
		from = wire.Time(r.from.Time).String()
	}
	if r.to.Kind == event.InstantTime {
		to = wire.Time(r.to.Time).String()
	}
	head, err := r.LogHead(r.ctx, client.At(to))
	if err != nil {
		return err
	}
	if r.to.Kind == event.InstantNow {
		if to = "start"; head.Index > 0 {
			to = fmt.Sprintf("index:%d", head.Index)
		}
	}
	q := r.query()
	q.From, q.To, q.Limit = from, to, 1000
	var begins *wire.Time
	q.OnHistoryBegins = func(at wire.Time) { begins = &at }
	events := r.AllEvents(r.ctx, q)
	if r.Message != "" {
		events = r.history(head.Index)
	}
	for e, err := range events {
		if err == nil {
			err = r.event(e)
		}
		if err != nil {
			return err
		}
	}
	queues, err := r.Queues(r.ctx, "", client.At(to))
	if err != nil {
		return err
	}
	page, err := r.Events(r.ctx, client.EventQuery{From: from, To: to, Limit: 1})
	if err != nil {
		return err
	}
	body := stateBody{
		At: head.Time, Index: head.Index, ChainHash: head.ChainHash, Queues: map[string]wire.Stats{},
		HistoryBeginsAt: cmp.Or(page.HistoryBeginsAt, begins),
	}
	if r.to.Kind == event.InstantTime {
		body.At = max(body.At, wire.Time(r.to.Time))
	}
	for _, q := range queues {
		if r.filter.Queue == "" || r.filter.Queue == q.Name {
			body.Queues[q.Name] = q.Stats
		}
	}
	return r.state(&body)
}

// history returns a message's events from --from on up to an index, through
// dead-letter queues, replays and resurrections.
func (r *replayer) history(last uint64) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		events, err := r.History(r.ctx, r.Message)
		if errors.Is(err, client.ErrMessageNotFound) {
			return
		}
		if err != nil {
			yield(wire.Event{}, err)
			return
		}
		for _, e := range events {
			q := r.filter.Queue
			inQueue := q == "" || e.Queue == q || e.ToQueue == q
			if inQueue && notBefore(&e, r.from) && e.Index <= last && !yield(e, nil) {
				return
			}
		}
	}
}

// notBefore reports whether an event is at or after an instant.
func notBefore(e *wire.Event, at event.Instant) bool {
	switch at.Kind {
	case event.InstantNow:
		return false
	case event.InstantTime:
		return int64(e.Time) >= at.Time
	}
	return e.Index >= at.Index // of the start it is 0
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
		*replay.Turn
		Event *wire.Event `json:"event"` // null if only time passed
		replay.BisectCost
	}{t, nil, t.Cost}
	text := fmt.Sprintf("holds after index:%d at %s, ", t.Index, t.Time)
	switch {
	case t.Already:
		text = fmt.Sprintf("holds after index:%d, which is --from: it holds from the beginning on",
			t.Index)
	case t.Event != nil:
		e := api.EventOf(t.Event)
		body.Event = &e
		text += fmt.Sprintf("with %s %s of %s %s %s",
			e.Type, e.EventID, e.Queue, e.MessageID, short(eventText(&e), 160))
	default:
		text += "by the passing of time alone"
	}
	if r.output == "json" || t.Found {
		if err := r.say(named{"bisect": body}, "%s", text); err != nil {
			return err
		}
	}
	if t.Found {
		r.note("%s examined, %s folded, asked %s",
			plural(t.Cost.Checkpoints, "checkpoint", "checkpoints"),
			plural(int64(t.Cost.Blocks), "block", "blocks"), plural(t.Cost.Asked, "time", "times"))
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
	if log.IsRange(err) {
		return fmt.Errorf("--to: %w", err)
	}
	if err != nil {
		return err
	}
	return r.copied(node, copied)
}

// copied says what was written to --into.
func (r *replayer) copied(node *datadir.Node, copied int64) error {
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
