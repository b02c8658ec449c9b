package main

import (
	"context"
	"fmt"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/replay"
	"github.com/qlogd/qlogd/replay/predicate"
)

// bisectLine is the line of --bisect with --output json.
type bisectLine struct {
	Bisect bisectBody `json:"bisect"`
}

type bisectBody struct {
	Found       bool        `json:"found"`
	Already     bool        `json:"already"` // it held at --from
	Index       uint64      `json:"index,omitzero"`
	Time        wire.Time   `json:"time"`
	Event       *wire.Event `json:"event"` // null where it came with the passing of time alone
	Checkpoints int         `json:"checkpoints"`
	Blocks      uint64      `json:"blocks"`
	Asked       int         `json:"asked"`
}

// tellBisect finds the first event after which a predicate holds.
func (r *replayer) tellBisect(ctx context.Context, d *replay.Dir) error {
	p, err := predicate.Compile(r.bisect)
	if err != nil {
		return usagef("--bisect: %w\nit can be about\n\n%s", err, predicate.Help)
	}
	bar := r.progress("searching", true)
	t, err := d.Bisect(ctx, r.from, r.to, p.Holds, r.exhaustive, bar.set)
	bar.done()
	if err != nil {
		return err
	}
	body := bisectBody{
		Found: t.Found, Already: t.Already, Index: t.Index, Time: wire.Time(t.Clock),
		Checkpoints: t.Cost.Checkpoints, Blocks: t.Cost.Blocks, Asked: t.Cost.Asked,
	}
	if t.Event != nil {
		e := api.EventOf(t.Event)
		body.Event = &e
	}
	if r.output == "json" {
		if err := r.wire(bisectLine{body}); err != nil {
			return err
		}
	} else if t.Found {
		what := "by the passing of time alone"
		switch {
		case t.Already:
			what = "which is --from: it holds from the beginning on"
		case body.Event != nil:
			what = fmt.Sprintf("with %s %s of %s %s %s", body.Event.Type, body.Event.EventID, body.Event.Queue, body.Event.MessageID, short(eventText(body.Event), 160))
		}
		fmt.Fprintf(r.stdout, "holds after index:%d at %s, %s\n", t.Index, body.Time, what)
		fmt.Fprintf(r.stderr, "%s looked at, %s folded, asked %s\n", plural(t.Cost.Checkpoints, "checkpoint", "checkpoints"), plural(int(t.Cost.Blocks), "block", "blocks"), plural(t.Cost.Asked, "time", "times"))
	}
	if !t.Found {
		hint := ""
		if !r.exhaustive {
			hint = "; it may have held in between: --exhaustive looks at every entry"
		}
		return fmt.Errorf("the predicate does not hold at --to%s", hint)
	}
	return nil
}
