package event

import "fmt"

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
