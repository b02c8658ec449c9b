package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/replay"
)

// eventLine and stateLine are the lines of --output json.
type eventLine struct {
	Event wire.Event `json:"event"`
}

type stateLine struct {
	State stateBody `json:"state"`
}

type stateBody struct {
	At        wire.Time             `json:"at"`
	Index     uint64                `json:"index"`
	ChainHash string                `json:"chain_hash"`
	Queues    map[string]wire.Stats `json:"queues"`
}

// tell prints every event between the two instants, and the state at the last.
func (r *replayer) tell(ctx context.Context, d *replay.Dir) error {
	out := bufio.NewWriterSize(r.stdout, 64<<10)
	buffered := *r.app
	buffered.stdout = out
	// Nothing is printed over a bar: it is for output that goes elsewhere.
	bar := r.progress("reading", !terminal(r.stdout))
	lines := &eventLines{app: &buffered}
	var n int
	_, last, err := d.Events(ctx, r.from, r.to, r.filter, func(index uint64, e *event.Event) error {
		n++
		bar.set(int64(index), int64(d.Log.Head()))
		return lines.print(api.EventOf(e))
	})
	bar.done()
	if err != nil {
		return err
	}
	bar = r.progress("folding", true)
	state, cost, err := d.StateAt(ctx, r.to)
	bar.done()
	if err != nil {
		return err
	}
	for _, err := range cost.Skipped {
		fmt.Fprintln(r.stderr, "qlogd: passed over:", err)
	}
	var chain [32]byte // nothing's is zero, also where retention has deleted the start
	if last > 0 {
		if chain, err = d.Log.ChainAt(last); err != nil {
			return err
		}
	}
	body := stateOf(state, r.to, r.filter.Queue)
	body.ChainHash = hex.EncodeToString(chain[:])
	if err := buffered.state(&body, n); err != nil {
		return err
	}
	if r.output != "json" {
		from := "the start"
		if cost.Checkpoint > 0 {
			from = fmt.Sprintf("the checkpoint at index:%d", cost.Checkpoint)
		}
		fmt.Fprintf(r.stderr, "state folded from %s: %s, %s\n", from, plural(int(cost.Blocks), "block", "blocks"), plural(int(cost.Events), "event", "events"))
	}
	return out.Flush()
}

// stateOf is a state in the words of the API. The instant of a time is that
// time, of everything else the log's clock.
func stateOf(s *projections.State, at event.Instant, queue string) stateBody {
	clock := s.Clock()
	if at.Kind == event.InstantTime {
		clock = max(clock, at.Time)
	}
	body := stateBody{At: wire.Time(clock), Index: s.Index(), Queues: map[string]wire.Stats{}}
	for _, q := range s.Queues() {
		if queue == "" || queue == q.Name {
			body.Queues[q.Name] = statsOf(&q.Stats, clock)
		}
	}
	return body
}

// statsOf is a queue's counts at an instant; rates are not known in the past.
func statsOf(t *event.Stats, clock int64) wire.Stats {
	s := wire.Stats{
		Depth: t.Ready, Held: t.Held, Scheduled: t.Scheduled, InFlight: t.InFlight, Bytes: t.Bytes,
		EnqueuedTotal: t.Enqueued, AckedTotal: t.Acked, DeadLetteredTotal: t.DeadLettered, Partitions: t.Partitions,
	}
	if t.Oldest > 0 {
		s.OldestMessageAgeSeconds = max(0, clock-t.Oldest) / 1000
	}
	return s
}

// state prints the state at the end of a replay.
func (a *app) state(body *stateBody, events int) error {
	if a.output == "json" {
		return a.wire(stateLine{*body})
	}
	if events > 0 {
		fmt.Fprintln(a.stdout)
	}
	fmt.Fprintf(a.stdout, "%s, state at %s", plural(events, "event", "events"), body.At)
	if body.Index > 0 {
		fmt.Fprintf(a.stdout, " (index:%d, chain %.16s…)", body.Index, body.ChainHash)
	}
	fmt.Fprintln(a.stdout)
	if len(body.Queues) == 0 {
		fmt.Fprintln(a.stdout, "no queues")
		return nil
	}
	var rows [][]any
	for _, name := range sortedKeys(body.Queues) {
		s := body.Queues[name]
		rows = append(rows, []any{name, s.Depth, s.Held, s.Scheduled, s.InFlight, humanize.IBytes(uint64(s.Bytes)), s.EnqueuedTotal, s.AckedTotal, s.DeadLetteredTotal})
	}
	return a.table([]string{"queue", "depth", "held", "scheduled", "in flight", "bytes", "enqueued", "acked", "dead"}, rows)
}

// eventLines prints events as they come: a log is too long to wait for the
// widths of a table.
type eventLines struct {
	*app
	n int
}

func (l *eventLines) print(e wire.Event) error {
	if l.output == "json" {
		return l.wire(eventLine{e})
	}
	if l.n == 0 {
		fmt.Fprintf(l.stdout, "%-24s  %-8s  %-15s  %-20s  %-26s  %s\n", "TIME", "INDEX", "TYPE", "QUEUE", "MESSAGE", "WHAT")
	}
	l.n++
	_, err := fmt.Fprintf(l.stdout, "%-24s  %-8d  %-15s  %-20s  %-26s  %s\n", e.Time, e.Index, e.Type, e.Queue, e.MessageID, short(eventText(&e), 160))
	return err
}
