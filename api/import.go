package api

import (
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

const maxSourceID = 256

// importWindow is for how long at least a source id is known after its message
// has left the queue.
const importWindow = 24 * 3600 * 1000

// importMessages answers POST /v1/queues/{queue}/messages/import.
func (s *Server) importMessages(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow(); err != nil {
		return err
	}
	var in wire.ImportRequest
	if err := q.decode(&in, false, false); err != nil {
		return err
	}
	if err := batchSize("messages", len(in.Messages)); err != nil {
		return err
	}
	msgs := make([]wire.NewMessage, len(in.Messages))
	for i := range in.Messages {
		m := &in.Messages[i]
		switch n := len(m.SourceID); {
		case n < 1 || n > maxSourceID:
			return bad("source_id", "source_id must have 1 to %d bytes, not %d", maxSourceID, n).At(i)
		case m.IdempotencyKey != "":
			return bad("idempotency_key", "idempotency_key does not go with an import: source_id tells what came before").At(i)
		}
		msgs[i] = m.NewMessage
	}
	b, err := s.newBatch(msgs)
	if err != nil {
		return err
	}
	b.imported = true
	for i := range in.Messages {
		b.msgs[i].SourceID = in.Messages[i].SourceID
		// No text begins with this byte, so that no idempotency_key can be in the way.
		b.msgs[i].DedupKey = hash("\xffsource_id\x00", in.Messages[i].SourceID)
	}
	res, err := s.enqueueBatch(q, name, b)
	if err != nil {
		return err
	}
	out := wire.ImportResponse{Messages: make([]wire.Imported, len(res.Produced))}
	for i, p := range res.Produced {
		m := wire.Imported{SourceID: in.Messages[i].SourceID, ID: p.ID.String(), Status: wire.Enqueued}
		if p.Duplicate {
			m.Status = wire.Duplicate
			out.Ignored++
		} else {
			out.Imported++
		}
		out.Messages[i] = m
	}
	status := http.StatusCreated
	if out.Imported == 0 {
		status = http.StatusOK
	}
	return q.answer(status, &out)
}

// dedupWindow is for how long a produce into a queue is held against what came
// before, ms; 0: it is not.
func dedupWindow(p *event.Produce, q *event.QueueView) int64 {
	window := q.Policy.DedupWindowSeconds * 1000
	if p.Import {
		return max(window, importWindow)
	}
	return window
}
