package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/replay"
)

// replayer is one run of qlogd replay.
type replayer struct {
	*app
	dataDir      string
	fromText     string
	toText       string
	message      string
	verify, diff bool
	into         string
	archive      string
	whatIf       string
	against      string
	bisect       string
	exhaustive   bool
	tolerance    time.Duration

	log      *openLog
	from, to event.Instant
	filter   replay.Filter
}

func (a *app) replayCmd() *cobra.Command {
	r := &replayer{app: a}
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Rebuild the past from the log",
		Long: `Rebuilds the past from a node's event log: tells every event between two
instants and the state that they lead to. It needs no running server: it reads a
data directory, of a stopped node, of a live one, or a copy, and never touches it.

An instant is an RFC 3339 time, an event's id, index:N, a duration before now
such as 15m, start, or now. Both ends are inclusive.

  --verify  checks every checksum and the hash chain, folds the whole log, and
            compares with every checkpoint. A difference is named, exit code 3.
  --diff    tells what changed between the two instants, queue by queue and
            message by message; with --against what is different in another
            node's data directory, or in the live state of a running server
            (exit code 3 if anything is).
  --bisect  finds the first event between the two instants after which a CEL
            predicate over the state holds, such as queue('jobs').depth > 100.
  --into    writes a new data directory with the state as of --to, which
            "qlogd serve --data-dir" opens as a node of its own: the log up to
            there unchanged, time going on from that instant.

  --what-if plays the log between the two instants under another policy: what
            producers, workers and operators did is given, the rest is decided
            anew. Tells each message whose life would have been another, from
            where on, and sums up; and what can't be known.
  --archive reads sealed segments from an archive (qlogd log archive), alone or,
            with --data-dir, before what the directory still holds.

With --output json every line is an object: {"event": …}, and last {"state": …}.`,
		Example: `  qlogd replay --from 15m
  qlogd replay --from start --to 2026-01-31T12:00:00Z --queue jobs
  qlogd replay --message 01J… -o json | jq .event.type
  qlogd replay --data-dir /backup/qlogd --verify
  qlogd replay --from index:1200 --diff
  qlogd replay --diff --data-dir n1 --against n2
  qlogd replay --diff --against http://127.0.0.1:7070
  qlogd replay --bisect "queue('jobs').dead_lettered_total >= 10"
  qlogd replay --archive /mnt/backup/qlogd --from 2026-01-01T00:00:00Z --message 01J…
  qlogd replay --to 01J… --into ./then && qlogd serve --data-dir ./then`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.run(cmd.Context(), cmd.Flags().Changed("data-dir"))
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.dataDir, "data-dir", "", "data directory to read (default $QLOGD_DATA_DIR or ./qlogd-data)")
	f.StringVar(&a.reach.addr, "addr", "", "ask a running server at this address instead")
	f.StringVar(&r.fromText, "from", "start", "first instant")
	f.StringVar(&r.toText, "to", "now", "last instant")
	f.StringVar(&r.filter.Queue, "queue", "", "only this queue")
	f.StringVar(&r.message, "message", "", "only this message, through dead-letter queues and replays")
	f.BoolVar(&r.verify, "verify", false, "check the log and the checkpoints")
	f.BoolVar(&r.diff, "diff", false, "tell what changed between --from and --to")
	f.StringVar(&r.into, "into", "", "write a new data directory with the state as of --to")
	f.StringVar(&r.archive, "archive", "", "read an archive, DIR, alone or before --data-dir")
	f.StringVar(&r.whatIf, "what-if", "", "a YAML file of other policies: queues: {jobs: {delivery: {max_attempts: 3}}}; * is every other queue")
	f.DurationVar(&r.tolerance, "tolerance", time.Second, "with --what-if: by how much times may differ")
	f.StringVar(&r.against, "against", "", "with --diff: compare with another data directory, or with the server at http://…")
	f.StringVar(&r.bisect, "bisect", "", "find the first event after which this CEL predicate holds")
	f.BoolVar(&r.exhaustive, "exhaustive", false, "with --bisect: look at every entry, for a predicate that comes and goes")
	cmd.MarkFlagsMutuallyExclusive("verify", "diff", "into", "what-if", "bisect")
	cmd.MarkFlagsMutuallyExclusive("data-dir", "addr")
	cmd.MarkFlagsMutuallyExclusive("archive", "addr")
	a.authFlags(cmd)
	a.outputFlag(cmd)
	return cmd
}

func (r *replayer) run(ctx context.Context, dirGiven bool) error {
	if r.reach.addr == "" && r.archive == "" && !dirGiven {
		if r.dataDir = r.getenv("QLOGD_DATA_DIR"); r.dataDir == "" {
			r.dataDir = "./qlogd-data"
		}
	}
	// What is wrong with the words is told before anything is opened.
	if err := r.parse(); err != nil {
		return err
	}
	switch {
	case r.against != "" && !r.diff:
		return usagef("--against goes with --diff")
	case r.exhaustive && r.bisect == "":
		return usagef("--exhaustive goes with --bisect")
	}
	if r.reach.addr == "" {
		var err error
		if r.log, err = r.openLog(ctx, r.dataDir, r.archive); err != nil {
			return err
		}
		// A copy of the past lives behind the wall's time: so do its durations.
		if r.log.node != nil && r.log.node.ClockOffsetMS != 0 {
			if err := r.parse(); err != nil {
				return err
			}
		}
	}
	if r.reach.addr != "" {
		if r.verify || r.diff || r.into != "" || r.whatIf != "" || r.bisect != "" {
			return usagef("--verify, --diff, --bisect, --into and --what-if read a data directory: give --data-dir in place of --addr")
		}
		return r.remote(ctx)
	}
	if r.verify {
		return r.verifyDir(ctx)
	}
	if r.whatIf != "" {
		return r.tellWhatIf(ctx)
	}
	d, err := r.log.dir()
	if err != nil {
		return err
	}
	defer d.Close()
	r.tellTail(d)
	if err := r.order(d.Log); err != nil {
		return err
	}
	switch {
	case r.against != "":
		return instantError(r.tellAgainst(ctx, d))
	case r.bisect != "":
		return instantError(r.tellBisect(ctx, d))
	case r.diff:
		return instantError(r.tellDiff(ctx, d))
	case r.into != "":
		return instantError(r.copyInto(ctx, d))
	}
	return instantError(r.tell(ctx, d))
}

func (r *replayer) parse() (err error) {
	now := time.Now().UnixMilli()
	if r.log != nil && r.log.node != nil {
		now += r.log.node.ClockOffsetMS
	}
	if r.from, err = event.ParseInstant(r.fromText, now); err != nil {
		return usagef("--from: %w", err)
	}
	if r.to, err = event.ParseInstant(r.toText, now); err != nil {
		return usagef("--to: %w", err)
	}
	if r.message != "" {
		if r.filter.Message, err = event.ParseID(r.message); err != nil {
			return usagef("--message: %.64q is %w", r.message, err)
		}
	}
	if r.filter.Queue != "" && !event.ValidName(r.filter.Queue) {
		return usagef("--queue: %.64q can't be a queue's name", r.filter.Queue)
	}
	return nil
}

// order refuses a range that ends before it begins.
func (r *replayer) order(log *eventlog.Log) error {
	first, err := log.From(r.from)
	if err != nil {
		return instantError(fmt.Errorf("--from: %w", err))
	}
	last, err := log.To(r.to)
	if err != nil {
		return instantError(fmt.Errorf("--to: %w", err))
	}
	// A time at which nothing was yet to come is no mistake; one that lies
	// after --to is, as is an entry that does.
	timed := r.from.Kind == event.InstantTime
	after := first > last && (r.from.Kind == event.InstantIndex || r.from.Kind == event.InstantID) ||
		timed && r.to.Kind == event.InstantTime && r.from.Time > r.to.Time ||
		timed && first > last+1
	if after && r.into == "" {
		return usagef("--from %s is after --to %s", r.fromText, r.toText)
	}
	return nil
}

// instantError makes an instant that is none of the log's the user's mistake.
func instantError(err error) error {
	if eventlog.IsRange(err) || errors.Is(err, replay.ErrTarget) {
		return usagef("%w", err)
	}
	return err
}

// tellTail tells of what follows the log's last whole block: no error, for a
// live node is writing it, or a crash tore an entry that Raft applies again.
func (r *replayer) tellTail(d *replay.Dir) {
	if t := d.Tail(); t != nil {
		fmt.Fprintf(r.stderr, "qlogd: the log's tail is torn or still being written: %s after offset %d of %s (%s); told is all up to index:%d\n",
			plural(int(t.Bytes), "byte", "bytes"), t.Offset, t.Segment, t.Reason, t.LastGood)
	}
}
