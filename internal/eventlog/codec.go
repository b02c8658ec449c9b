package eventlog

import (
	"fmt"

	"github.com/qlogd/qlogd/internal/event"
	"github.com/qlogd/qlogd/log"
)

// record turns an event into the bytes that the log keeps. Id, subject, alias,
// back-pointer and content have places of their own in a record, so that the
// log can index and erase without knowing what an event is; the rest is the
// header.
func record(e *event.Event) log.Record {
	r := log.Record{
		ID:      e.ID,
		Subject: e.Subject,
		Alias:   e.Alias,
		Prev:    log.Ref(e.Prev),
		Header:  event.EncodeHeader(e),
	}
	if !e.Content.IsZero() {
		r.Digest, r.Content = e.Content.Digest, e.Content.Bytes
	}
	return r
}

// fromRecord is the inverse of record. An erased content leaves its digest and
// no bytes: Event.Erased tells.
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
	out := &event.Block{Index: b.Index, Time: b.Time, Chain: b.Chain}
	if len(b.Records) > 0 {
		out.Events = make([]event.Event, len(b.Records))
	}
	for i := range b.Records {
		if err := fromRecord(&b.Records[i], &out.Events[i]); err != nil {
			return nil, fmt.Errorf("block %d: %w", b.Index, err)
		}
	}
	return out, nil
}
