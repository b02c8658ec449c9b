package event

// EncodeCommand returns a command's bytes. The node that took the request
// encodes it once; the leader only groups the bytes.
func EncodeCommand(c *Command) []byte {
	w := newWriter(c.size())
	pos, outer := w.open()
	w.str(1, c.Actor)
	if q := c.Request; q != nil {
		w.sub(2, func() { w.b16(1, q.Key); w.b16(2, q.Body); w.uint(3, q.Looked) })
	}
	if q := c.PutQueue; q != nil {
		w.sub(3, func() { writePutQueue(w, q) })
	}
	if q := c.DeleteQueue; q != nil {
		w.sub(4, func() { w.str(1, q.Name); w.bool(2, q.Force) })
	}
	if q := c.PauseQueue; q != nil {
		w.sub(5, func() { w.str(1, q.Name); w.bool(2, q.Paused) })
	}
	if q := c.PurgeQueue; q != nil {
		w.sub(6, func() { w.str(1, q.Name) })
	}
	if q := c.Produce; q != nil {
		w.sub(7, func() { writeProduce(w, q) })
	}
	if q := c.Lease; q != nil {
		w.sub(8, func() {
			w.strs(1, q.Queues)
			w.int(2, int64(q.Max))
			w.int(3, q.LeaseMS)
			w.str(4, q.Worker)
			w.strs(5, q.Kinds)
		})
	}
	if q := c.Settle; q != nil {
		w.sub(9, func() { w.str(1, q.Queue); writeSettles(w, 2, q.Items) })
	}
	if q := c.Transaction; q != nil {
		w.sub(10, func() {
			writeSettles(w, 1, q.Settle)
			if len(q.Produce) > 0 {
				w.list(2, len(q.Produce))
				for i := range q.Produce {
					w.item(func() { writeProduce(w, &q.Produce[i]) })
				}
			}
		})
	}
	if q := c.Delete; q != nil {
		w.sub(11, func() { w.b16(1, q.ID) })
	}
	if q := c.Carry; q != nil {
		w.sub(12, func() {
			if len(q.Items) > 0 {
				w.list(1, len(q.Items))
				for _, it := range q.Items {
					w.item(func() { w.b16(1, it.ID); w.ref(2, it.From); w.blob(3, &it.Content) })
				}
			}
		})
	}
	if q := c.Retain; q != nil {
		w.sub(13, func() { w.uint(1, q.Before) })
	}
	if c.Mark != nil {
		w.sub(14, func() {})
	}
	if q := c.Upgrade; q != nil {
		w.sub(15, func() { w.uint(1, uint64(q.Rules)) })
	}
	if q := c.Replay; q != nil {
		w.sub(16, func() {
			w.str(1, q.Queue)
			w.str(2, q.To)
			w.uint(3, uint64(q.Order))
			w.uint(4, uint64(q.MaxReplays))
			w.uint(5, q.Revision)
			w.bool(6, q.Strict)
			w.b16(7, q.Task)
			writeItems(w, 8, q.Items, func(it *ReplayItem) {
				w.b16(1, it.ID)
				w.bool(2, it.Edited)
				w.uint(3, uint64(it.Size))
				w.blob(4, &it.Content)
			})
		})
	}
	if q := c.PurgeDead; q != nil {
		w.sub(17, func() {
			w.str(1, q.Queue)
			w.bool(2, q.Strict)
			w.b16(3, q.Task)
			writeItems(w, 4, q.IDs, func(id *ID) { w.b16(1, *id) })
		})
	}
	if q := c.Resurrect; q != nil {
		w.sub(18, func() {
			w.b16(1, q.ID)
			w.ref(2, q.Last)
			w.str(3, q.Queue)
			w.uint(4, q.Revision)
			w.str(5, q.Key)
			w.str(6, q.Kind)
			w.uint(7, uint64(q.Priority))
			w.uint(8, uint64(q.Size))
			w.b16(9, q.First)
			w.uint(10, uint64(q.Replays))
			w.bool(11, q.Edited)
			w.blob(12, &q.Content)
		})
	}
	if q := c.CreateTask; q != nil {
		w.sub(19, func() {
			w.uint(1, uint64(q.Kind))
			w.str(2, q.Queue)
			w.int(3, q.Total)
			w.blob(4, &q.Content)
		})
	}
	if q := c.UpdateTask; q != nil {
		w.sub(20, func() {
			w.b16(1, q.ID)
			w.uint(2, uint64(q.Op))
			w.str(3, q.Node)
			w.int(4, q.Skipped)
			w.blob(5, &q.Content)
		})
	}
	if q := c.Erase; q != nil {
		w.sub(21, func() {
			w.b16(1, q.Task)
			writeItems(w, 2, q.Items, func(it *EraseItem) { w.b16(1, it.ID); w.ref(2, it.Last); writeRefs(w, 3, it.Refs) })
			w.blob(3, &q.Why)
		})
	}
	if q := c.PutWebhook; q != nil {
		w.sub(22, func() { writePutWebhook(w, q) })
	}
	if q := c.DeleteWebhook; q != nil {
		w.sub(23, func() { w.str(1, q.Name) })
	}
	if q := c.Define; q != nil {
		w.sub(24, func() {
			writeItems(w, 1, q.Queues, func(q *PutQueue) { writePutQueue(w, q) })
			writeItems(w, 2, q.Webhooks, func(q *PutWebhook) { writePutWebhook(w, q) })
		})
	}
	w.close(pos, outer)
	return w.buf
}

func writeItems[T any](w *writer, tag int, items []T, one func(*T)) {
	if len(items) == 0 {
		return
	}
	w.list(tag, len(items))
	for i := range items {
		w.item(func() { one(&items[i]) })
	}
}

func writePutQueue(w *writer, q *PutQueue) {
	w.str(1, q.Name)
	w.sub(2, func() { writePolicy(w, &q.Policy) })
	w.uint(3, q.IfRevision)
	w.bool(4, q.DeadLetterAuto)
}

func writePutWebhook(w *writer, q *PutWebhook) {
	w.str(1, q.Name)
	w.str(2, q.Queue)
	w.bytes(3, q.Definition)
}

// size is what a command's bytes take, more or less: what is many or long in it.
func (c *Command) size() int {
	n := 128 + len(c.Actor)
	if q := c.PutQueue; q != nil {
		n += 256 + len(q.Policy.MessageSchema)
	}
	if q := c.Produce; q != nil {
		n += q.size()
	}
	if q := c.Settle; q != nil {
		n += settlesSize(q.Items)
	}
	if q := c.Transaction; q != nil {
		n += settlesSize(q.Settle)
		for i := range q.Produce {
			n += q.Produce[i].size()
		}
	}
	if q := c.Replay; q != nil {
		for i := range q.Items {
			n += 32 + blobSize + len(q.Items[i].Content.Bytes)
		}
	}
	if q := c.Resurrect; q != nil {
		n += 128 + blobSize + len(q.Content.Bytes)
	}
	if q := c.Carry; q != nil {
		for i := range q.Items {
			n += 64 + blobSize + len(q.Items[i].Content.Bytes)
		}
	}
	return n
}

const blobSize = 2 + 2 + 32 + 5

func (q *Produce) size() int {
	n := 64 + len(q.Queue)
	for i := range q.Messages {
		m := &q.Messages[i]
		n += 32 + blobSize + len(m.Key) + len(m.Kind) + len(m.Content.Bytes)
		if !m.DedupKey.IsZero() || !m.PayloadHash.IsZero() {
			n += 4 * 19
		}
	}
	return n
}

func settlesSize(items []SettleItem) int {
	n := 0
	for i := range items {
		n += 32
		if b := &items[i].Content; !b.IsZero() {
			n += blobSize + len(b.Bytes)
		}
	}
	return n
}

func writeProduce(w *writer, q *Produce) {
	w.str(1, q.Queue)
	w.uint(2, q.Revision)
	w.bool(3, q.AutoCreate)
	w.uint(4, q.Looked)
	if len(q.Messages) > 0 {
		w.list(5, len(q.Messages))
	}
	for i := range q.Messages {
		m := &q.Messages[i]
		pos, outer := w.open()
		w.str(1, m.Key)
		w.str(2, m.Kind)
		w.uint(3, uint64(m.Priority))
		w.int(4, m.DelayMS)
		w.int(5, m.DeliverAt)
		w.int(6, m.TTLMS)
		w.b16(7, m.DedupKey)
		w.b16(8, m.PayloadHash)
		w.uint(9, uint64(m.Size))
		w.blob(10, &m.Content)
		w.b16(11, m.Seen)
		w.int(12, m.SeenUntil)
		w.str(13, m.SourceID)
		w.close(pos, outer)
	}
	w.bool(6, q.Import)
}

func writeSettles(w *writer, tag int, items []SettleItem) {
	if len(items) == 0 {
		return
	}
	w.list(tag, len(items))
	for i := range items {
		it := &items[i]
		pos, outer := w.open()
		w.uint(1, uint64(it.Op))
		w.b16(2, it.Lease)
		w.int(3, it.DelayMS)
		w.int(4, it.LeaseMS)
		w.blob(5, &it.Content)
		w.close(pos, outer)
	}
}
