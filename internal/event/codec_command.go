package event

import "fmt"

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

// DecodeCommand is the inverse of EncodeCommand. The contents in it are not
// copied: they lie in b, which nobody may change as long as they are used.
func DecodeCommand(b []byte) (*Command, error) {
	r := &reader{}
	if err := r.versioned(b); err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	c := &Command{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			c.Actor = r.str()
		case 2:
			c.Request = &Request{}
			r.fields(func(t int) bool {
				switch t {
				case 1:
					c.Request.Key = r.b16()
				case 2:
					c.Request.Body = r.b16()
				case 3:
					c.Request.Looked = r.uint()
				default:
					return false
				}
				return true
			})
		case 3:
			c.PutQueue = &PutQueue{}
			r.putQueue(c.PutQueue)
		case 4:
			c.DeleteQueue = &DeleteQueue{}
			c.DeleteQueue.Name, c.DeleteQueue.Force = r.nameAndBool()
		case 5:
			c.PauseQueue = &PauseQueue{}
			c.PauseQueue.Name, c.PauseQueue.Paused = r.nameAndBool()
		case 6:
			c.PurgeQueue = &PurgeQueue{}
			c.PurgeQueue.Name, _ = r.nameAndBool()
		case 7:
			c.Produce = readProduce(r)
		case 8:
			c.Lease = readLease(r)
		case 9:
			c.Settle = &Settle{}
			r.fields(func(t int) bool {
				switch t {
				case 1:
					c.Settle.Queue = r.str()
				case 2:
					c.Settle.Items = list(r, r.settle)
				default:
					return false
				}
				return true
			})
		case 10:
			c.Transaction = &Transaction{}
			r.fields(func(t int) bool {
				switch t {
				case 1:
					c.Transaction.Settle = list(r, r.settle)
				case 2:
					c.Transaction.Produce = list(r, func(q *Produce) { *q = *readProduce(r) })
				default:
					return false
				}
				return true
			})
		case 11:
			c.Delete = &DeleteMessage{}
			r.only(func() { c.Delete.ID = r.b16() })
		case 12:
			c.Carry = &Carry{}
			r.only(func() { c.Carry.Items = list(r, r.carry) })
		case 13:
			c.Retain = &Retain{}
			r.only(func() { c.Retain.Before = r.uint() })
		case 14:
			c.Mark = &Mark{}
			r.fields(func(int) bool { return false })
		case 15:
			c.Upgrade = &Upgrade{}
			r.only(func() { c.Upgrade.Rules = r.u16() })
		case 16:
			c.Replay = r.replay()
		case 17:
			c.PurgeDead = r.purgeDead()
		case 18:
			c.Resurrect = r.resurrect()
		case 19:
			c.CreateTask = r.createTask()
		case 20:
			c.UpdateTask = r.updateTask()
		case 21:
			c.Erase = r.erase()
		case 22:
			c.PutWebhook = &PutWebhook{}
			r.putWebhook(c.PutWebhook)
		case 23:
			c.DeleteWebhook = &DeleteWebhook{}
			c.DeleteWebhook.Name, _ = r.nameAndBool()
		case 24:
			c.Define = &Define{}
			r.fields(func(t int) bool {
				switch t {
				case 1:
					c.Define.Queues = list(r, r.putQueue)
				case 2:
					c.Define.Webhooks = list(r, r.putWebhook)
				default:
					return false
				}
				return true
			})
		default:
			return false
		}
		return true
	})
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	return c, nil
}

func (r *reader) putQueue(q *PutQueue) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Name = r.str()
		case 2:
			q.Policy = *readPolicy(r)
		case 3:
			q.IfRevision = r.uint()
		case 4:
			q.DeadLetterAuto = r.bool()
		default:
			return false
		}
		return true
	})
}

func (r *reader) putWebhook(q *PutWebhook) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Name = r.str()
		case 2:
			q.Queue = r.str()
		case 3:
			q.Definition = r.bytes()
		default:
			return false
		}
		return true
	})
}

func (r *reader) replay() *Replay {
	q := &Replay{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Queue = r.str()
		case 2:
			q.To = r.str()
		case 3:
			q.Order = Order(r.u8())
		case 4:
			q.MaxReplays = r.u32()
		case 5:
			q.Revision = r.uint()
		case 6:
			q.Strict = r.bool()
		case 7:
			q.Task = r.b16()
		case 8:
			q.Items = list(r, r.replayItem)
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) replayItem(it *ReplayItem) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			it.ID = r.b16()
		case 2:
			it.Edited = r.bool()
		case 3:
			it.Size = r.u32()
		case 4:
			r.blob(&it.Content)
		default:
			return false
		}
		return true
	})
}

func (r *reader) purgeDead() *PurgeDead {
	q := &PurgeDead{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Queue = r.str()
		case 2:
			q.Strict = r.bool()
		case 3:
			q.Task = r.b16()
		case 4:
			q.IDs = list(r, func(id *ID) { r.only(func() { *id = r.b16() }) })
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) resurrect() *Resurrect {
	q := &Resurrect{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.ID = r.b16()
		case 2:
			q.Last = r.ref()
		case 3:
			q.Queue = r.str()
		case 4:
			q.Revision = r.uint()
		case 5:
			q.Key = r.str()
		case 6:
			q.Kind = r.str()
		case 7:
			q.Priority = r.u8()
		case 8:
			q.Size = r.u32()
		case 9:
			q.First = r.b16()
		case 10:
			q.Replays = r.u32()
		case 11:
			q.Edited = r.bool()
		case 12:
			r.blob(&q.Content)
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) createTask() *CreateTask {
	q := &CreateTask{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Kind = TaskKind(r.u8())
		case 2:
			q.Queue = r.str()
		case 3:
			q.Total = r.int()
		case 4:
			r.blob(&q.Content)
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) updateTask() *UpdateTask {
	q := &UpdateTask{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.ID = r.b16()
		case 2:
			q.Op = TaskOp(r.u8())
		case 3:
			q.Node = r.str()
		case 4:
			q.Skipped = r.int()
		case 5:
			r.blob(&q.Content)
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) erase() *Erase {
	q := &Erase{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Task = r.b16()
		case 2:
			q.Items = list(r, r.eraseItem)
		case 3:
			r.blob(&q.Why)
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) eraseItem(it *EraseItem) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			it.ID = r.b16()
		case 2:
			it.Last = r.ref()
		case 3:
			it.Refs = list(r, func(v *Ref) { *v = r.ref() })
		default:
			return false
		}
		return true
	})
}

// only reads a map whose one tag is 1.
func (r *reader) only(fn func()) {
	r.fields(func(t int) bool {
		if t != 1 {
			return false
		}
		fn()
		return true
	})
}

func (r *reader) nameAndBool() (name string, v bool) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			name = r.str()
		case 2:
			v = r.bool()
		default:
			return false
		}
		return true
	})
	return name, v
}

func readProduce(r *reader) *Produce {
	q := &Produce{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Queue = r.str()
		case 2:
			q.Revision = r.uint()
		case 3:
			q.AutoCreate = r.bool()
		case 4:
			q.Looked = r.uint()
		case 5:
			q.Messages = list(r, r.newMessage)
		case 6:
			q.Import = r.bool()
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) newMessage(m *NewMessage) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			m.Key = r.str()
		case 2:
			m.Kind = r.str()
		case 3:
			m.Priority = r.u8()
		case 4:
			m.DelayMS = r.int()
		case 5:
			m.DeliverAt = r.int()
		case 6:
			m.TTLMS = r.int()
		case 7:
			m.DedupKey = r.b16()
		case 8:
			m.PayloadHash = r.b16()
		case 9:
			m.Size = r.u32()
		case 10:
			r.blob(&m.Content)
		case 11:
			m.Seen = r.b16()
		case 12:
			m.SeenUntil = r.int()
		case 13:
			m.SourceID = r.str()
		default:
			return false
		}
		return true
	})
}

func readLease(r *reader) *Lease {
	q := &Lease{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			q.Queues = list(r, r.text)
		case 2:
			q.Max = int(r.int())
		case 3:
			q.LeaseMS = r.int()
		case 4:
			q.Worker = r.str()
		case 5:
			q.Kinds = list(r, r.text)
		default:
			return false
		}
		return true
	})
	return q
}

func (r *reader) settle(it *SettleItem) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			it.Op = SettleOp(r.u8())
		case 2:
			it.Lease = r.b16()
		case 3:
			it.DelayMS = r.int()
		case 4:
			it.LeaseMS = r.int()
		case 5:
			r.blob(&it.Content)
		default:
			return false
		}
		return true
	})
}

func (r *reader) carry(it *CarryItem) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			it.ID = r.b16()
		case 2:
			it.From = r.ref()
		case 3:
			r.blob(&it.Content)
		default:
			return false
		}
		return true
	})
}
