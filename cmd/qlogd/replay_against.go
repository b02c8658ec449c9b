package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/replay"
)

// compareLine is the last line of --diff --against with --output json.
type compareLine struct {
	Compare compareBody `json:"compare"`
}

type compareBody struct {
	Index     uint64 `json:"index"` // at which was compared
	SameLog   bool   `json:"same_log"`
	AgreeUpTo uint64 `json:"agree_up_to_index"`
	Parted    uint64 `json:"first_different_index,omitzero"`
	SameState bool   `json:"same_state"`
	Changes   int    `json:"differences"`
	InMotion  int    `json:"in_motion,omitzero"` // of a live state: what changed while it was looked at
	Head      uint64 `json:"log_head"`
	OtherHead uint64 `json:"other_log_head"`
}

// isURL reports whether --against names a server.
func isURL(s string) bool {
	return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://")
}

// tellAgainst compares the log with another node's, or with the live state.
func (r *replayer) tellAgainst(ctx context.Context, d *replay.Dir) error {
	out := bufio.NewWriterSize(r.stdout, 64<<10)
	printer := *r.app
	printer.stdout = out
	var body compareBody
	var err error
	if isURL(r.against) {
		body, err = r.againstLive(ctx, d, &printer)
	} else {
		body, err = r.againstDir(ctx, d, &printer)
	}
	if err != nil {
		return err
	}
	if r.output == "json" {
		err = printer.wire(compareLine{body})
	} else {
		text := "the logs are the same"
		if !body.SameLog {
			text = fmt.Sprintf("the logs agree up to index:%d and part at index:%d", body.AgreeUpTo, body.Parted)
		}
		_, err = fmt.Fprintf(out, "%s; compared at index:%d (%d here, %d there): %s", text, body.Index, body.Head, body.OtherHead, plural(body.Changes, "difference", "differences"))
		if body.InMotion > 0 {
			fmt.Fprintf(out, ", %d changed meanwhile and left out", body.InMotion)
		}
		fmt.Fprintln(out)
	}
	if err == nil {
		err = out.Flush()
	}
	if err == nil && (!body.SameLog || !body.SameState) {
		return &exitError{exitDifference, fmt.Errorf("%s differs from %s", r.log.name, r.against)}
	}
	return err
}

func (r *replayer) againstDir(ctx context.Context, d *replay.Dir, out *app) (body compareBody, err error) {
	l, err := r.openLog(ctx, r.against, "")
	if err != nil {
		return body, err
	}
	other, err := l.dir()
	if err != nil {
		return body, err
	}
	defer other.Close()
	var clockA, clockB int64
	c, err := d.Compare(ctx, other, r.to, r.filter, func(a, b int64) { clockA, clockB = a, b }, func(x *replay.Change) error {
		return r.change(out, x, clockA, clockB)
	})
	if err != nil {
		return body, err
	}
	return compareBody{
		Index: c.Index, SameLog: c.SameLog, AgreeUpTo: c.AgreeUpTo, Parted: c.Parted, SameState: c.SameState, Changes: c.Changes,
		Head: d.Log.Head(), OtherHead: other.Log.Head(),
	}, nil
}

// againstLive compares the fold of the log with what a server says. The
// directory must be that of a node that runs: what is asked lies between two
// heads, and what changed in between is left out.
func (r *replayer) againstLive(ctx context.Context, d *replay.Dir, out *app) (body compareBody, err error) {
	a := *r.app
	a.reach.addr = r.against
	c, err := a.server()
	if err != nil {
		return body, err
	}
	before, err := c.LogHead(ctx)
	if err != nil {
		return body, told(err)
	}
	queues, err := c.Queues(ctx, "")
	if err != nil {
		return body, told(err)
	}
	messages := map[string]wire.Message{}
	for i := range queues {
		for q := (client.MessageQuery{Limit: 1000}); ; {
			page, err := c.Messages(ctx, queues[i].Name, q)
			if err != nil {
				return body, told(err)
			}
			for _, m := range page.Messages {
				messages[m.ID] = m
			}
			if q.After = page.NextCursor; q.After == "" {
				break
			}
		}
	}
	after, err := c.LogHead(ctx)
	if err != nil {
		return body, told(err)
	}
	// Opened anew: the directory went on, too.
	now, err := r.log.dir()
	if err != nil {
		return body, err
	}
	defer now.Close()
	body = compareBody{Index: after.Index, Head: now.Log.Head(), OtherHead: after.Index, AgreeUpTo: after.Index}
	if now.Log.Head() < after.Index {
		return body, usagef("the log ends at index:%d, the server is at index:%d already: give the data directory of a node of its cluster that runs", now.Log.Head(), after.Index)
	}
	chain, err := now.Log.ChainAt(after.Index)
	if err != nil {
		return body, err
	}
	if body.SameLog = hex.EncodeToString(chain[:]) == after.ChainHash; !body.SameLog {
		body.AgreeUpTo, body.Parted = 0, after.Index
		fmt.Fprintf(r.stderr, "qlogd: at index:%d the chain is %x… here and %.16s… there: another cluster's, or rewritten\n", after.Index, chain[:8], after.ChainHash)
		return body, nil
	}
	moving, movingQueues, err := now.InMotion(ctx, before.Index+1, after.Index)
	if err != nil {
		return body, err
	}
	state, _, err := now.StateAt(ctx, event.Instant{Kind: event.InstantIndex, Index: after.Index})
	if err != nil {
		return body, err
	}
	body.InMotion = len(moving)
	r.liveDiff(state, queues, messages, moving, movingQueues, func(line diffBody) {
		body.Changes++
		if err == nil {
			err = r.line(out, line)
		}
	})
	body.SameState = body.Changes == 0
	return body, err
}

// liveDiff tells what differs between the fold and what a server said.
func (r *replayer) liveDiff(state *projections.State, queues []wire.Queue, messages map[string]wire.Message, moving map[event.ID]bool, movingQueues map[string]bool, tell func(diffBody)) {
	live := map[string]*wire.Queue{}
	for i := range queues {
		live[queues[i].Name] = &queues[i]
	}
	names := map[string]bool{}
	for name := range live {
		names[name] = true
	}
	for _, q := range state.Queues() {
		names[q.Name] = true
	}
	for _, name := range sortedKeys(names) {
		if movingQueues[name] || r.filter.Queue != "" && r.filter.Queue != name {
			continue
		}
		var here, there any
		var a, b wire.Stats
		pausedHere, pausedThere := false, false
		if q, ok := state.Queue(name); ok {
			a, pausedHere = statsOf(&q.Stats, state.Clock()), q.Paused
			here = queueSideOf(&q, state.Clock())
		}
		if q := live[name]; q != nil {
			b, pausedThere = q.Stats, q.Paused
			there = queueSide{Paused: q.Paused, CreatedAt: q.CreatedAt, UpdatedAt: q.UpdatedAt, Stats: q.Stats}
		}
		// Ages and rates are of the moment.
		a.OldestMessageAgeSeconds, b.OldestMessageAgeSeconds, a.MessagesPerMinute, b.MessagesPerMinute = 0, 0, nil, nil
		if (here == nil) != (there == nil) || a != b || pausedHere != pausedThere {
			tell(diffBody{Queue: name, Before: here, After: there})
		}
	}
	ids := map[string]bool{}
	for id := range messages {
		ids[id] = true
	}
	state.All(func(m event.MessageView) bool {
		ids[m.ID.String()] = true
		return true
	})
	for _, text := range sortedKeys(ids) {
		id, err := event.ParseID(text)
		if err != nil || moving[id] || r.filter.Message != (event.ID{}) && r.filter.Message != id {
			continue
		}
		line := diffBody{MessageID: text}
		var a, b messageSide
		if m, ok := state.Message(id); ok {
			line.Queue = m.Queue
			a = messageSideOf(&replay.Fate{MessageView: m}).(messageSide)
			line.Before = a
		}
		if m, ok := messages[text]; ok {
			line.Queue = m.Queue
			b = messageSide{State: m.State, Held: m.Held, Key: m.Key, Attempt: uint32(m.Attempt), LeaseID: m.LeaseID, LeaseExpiresAt: m.LeaseExpiresAt}
			if m.State == event.StateScheduled.String() {
				b.AvailableAt = m.AvailableAt
			}
			line.After = b
		}
		if movingQueues[line.Queue] {
			// What is held, or comes due, moves with its queue.
			a.Held, b.Held = false, false
		}
		if r.filter.Queue != "" && r.filter.Queue != line.Queue || line.Before != nil && line.After != nil && a == b {
			continue
		}
		tell(line)
	}
}
