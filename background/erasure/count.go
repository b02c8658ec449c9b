package erasure

import (
	"bytes"
	"context"

	"github.com/qlogd/qlogd/event"
)

// Count is what there is to erase.
type Count struct {
	Messages, Live, Contents int64
	IDs                      []event.ID // one of each message, of at most maxIDs messages
}

const maxIDs = 100

// Count counts what a spec would erase now. For a key it may read the whole log.
func (c *Carrier) Count(ctx context.Context, spec *Spec) (out Count, err error) {
	f := c.Finder
	var id event.ID
	if spec.Message != "" {
		if id, err = event.ParseID(spec.Message); err != nil {
			return out, err
		}
		if err = f.count(ctx, id, &out); err != nil || out.Messages > 0 {
			return out, err
		}
	}
	if c.OpenPast != nil {
		past, done, err := c.OpenPast(ctx)
		if err != nil {
			return out, err
		}
		defer done()
		f.Past = past
	}
	if spec.Message != "" {
		return out, f.count(ctx, id, &out)
	}
	all := event.ID(bytes.Repeat([]byte{0xff}, len(event.ID{})))
	return out, f.Key(ctx, spec.Queue, spec.Key, all, func(id event.ID) error { return f.count(ctx, id, &out) })
}

func (f *Finder) count(ctx context.Context, id event.ID, out *Count) error {
	found, err := f.Message(ctx, id)
	if err != nil || len(found.IDs) == 0 {
		return err
	}
	out.Messages++
	if len(out.IDs) < maxIDs {
		out.IDs = append(out.IDs, found.IDs[0])
	}
	for _, it := range found.Items {
		out.Contents += int64(len(it.Refs))
		if it.Last.IsZero() {
			out.Live++
		}
	}
	return nil
}
