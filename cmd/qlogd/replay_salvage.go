package main

import (
	"fmt"
	"strings"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/replay"
)

// lossBody is a line of --salvage with --output json: {"lost": …}, or {"damaged": …} for what is
// wrong in a block that is kept, or between two.
type lossBody struct {
	Segment    string     `json:"segment"`
	Offset     int64      `json:"offset"`
	FirstIndex uint64     `json:"first_index"`
	LastIndex  uint64     `json:"last_index"`
	Reason     string     `json:"reason"`
	LeftOut    int        `json:"events_left_out"`
	MessageIDs []event.ID `json:"message_ids"`

	QueuesCreated []replay.Created `json:"queues_created"`
}

// salvage writes a new data directory with every whole block of a damaged log.
func (r *replayer) salvage() error {
	bar := r.progress("salvaging", true)
	var read int64
	node, losses, err := replay.Salvage(r.ctx, r.fs, r.path, r.node, r.to, r.Into, seed,
		func(done, total int64) {
			read = done
			bar.set(done, total)
		})
	bar.done()
	if err != nil {
		return noDir(err)
	}
	lost := 0
	for _, l := range losses {
		what, indexes := "damaged", fmt.Sprintf("index %d", l.First)
		if !l.Kept {
			what = "lost"
			lost++
		}
		if l.Last > l.First {
			indexes = fmt.Sprintf("indexes %d to %d", l.First, l.Last)
		}
		ids := append([]event.ID{}, l.Messages...)
		text := fmt.Sprintf("%s: segment %s, offset %d, %s: %s", what, l.Segment, l.Offset, indexes,
			l.Reason)
		if l.LeftOut > 0 {
			text += fmt.Sprintf("; %s left out", plural(l.LeftOut, "later event", "later events"))
		}
		if len(ids) > 0 {
			text += "; messages " + strings.Trim(fmt.Sprint(ids), "[]")
		}
		for _, c := range l.Created {
			text += "; created queue " + c.Queue
			if c.Checkpoint > 0 {
				text += fmt.Sprintf(" with its policy at index:%d", c.Checkpoint)
			} else {
				text += " with the default policy and max_attempts 0"
			}
		}
		err := r.say(named{what: lossBody{l.Segment, l.Offset, l.First, l.Last, l.Reason, l.LeftOut,
			ids, append([]replay.Created{}, l.Created...)}}, "%s", text)
		if err != nil {
			return err
		}
	}
	if err := r.copied(node, read); err != nil || len(losses) == 0 {
		return err
	}
	return exitf(exitDifference, "the log is damaged in %s: %d with lost blocks",
		plural(len(losses), "place", "places"), lost)
}

// lostText names the ranges of indexes that a salvage has found lost.
func lostText(lost []datadir.Lost) string {
	ranges := make([]string, len(lost))
	for i, l := range lost {
		ranges[i] = fmt.Sprintf("index:%d to index:%d", l.First, l.Last)
	}
	return "what was in " + strings.Join(ranges, ", ") + " was lost to damage of the log"
}
