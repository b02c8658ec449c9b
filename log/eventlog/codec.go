package eventlog

import (
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// record turns an event into the bytes that the log keeps. Id, subject, alias,
// back-pointer and content have places of their own in a record, so that the
// log can index and erase without knowing what an event is; the rest is the
// header.
func record(e *event.Event) log.Record {
	r := log.Record{ID: e.ID, Subject: e.Subject, Alias: e.Alias, Prev: log.Ref(e.Prev),
		Header: event.EncodeHeader(e)}
	if !e.Content.IsZero() {
		r.Digest, r.Content = e.Content.Digest, e.Content.Bytes
	}
	return r
}

// fromRecord is the inverse of record, into an empty event, or one that may have
// the name of a queue already (event.DecodeHeader). An erased content leaves its digest and
// no bytes: see Event.Erased.
func fromRecord(r *log.Record, e *event.Event) error {
	if err := event.DecodeHeader(r.Header, e); err != nil {
		return fmt.Errorf("event %s: %w", event.ID(r.ID), err)
	}
	e.ID, e.Subject, e.Alias, e.Prev = r.ID, r.Subject, r.Alias, event.Ref(r.Prev)
	if e.Content.Digest = r.Digest; !r.Erased {
		e.Content.Bytes = r.Content
	}
	return nil
}

// fromBlock turns a log's block into the shared words.
func fromBlock(b *log.Block) (*event.Block, error) {
	out := &event.Block{}
	if len(b.Records) > 0 {
		out.Events = make([]event.Event, 0, len(b.Records))
	}
	return out, intoBlock(b, out)
}

// intoBlock is fromBlock in the place of another block.
func intoBlock(b *log.Block, out *event.Block) error {
	out.Index, out.Time, out.Chain = b.Index, b.Time, b.Chain
	events, queue := slices.Grow(out.Events[:0], len(b.Records)), ""
	for i := range b.Records {
		events = append(events, event.Event{Queue: queue})
		if err := fromRecord(&b.Records[i], &events[i]); err != nil {
			return fmt.Errorf("block %d: %w", b.Index, err)
		}
		queue = events[i].Queue
	}
	out.Events = events
	return nil
}
