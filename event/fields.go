package event

// The fields of each type that a message passes through, in the order of their encoding: see coder.

func (e *Event) fields(c *coder) {
	number(c, "a", &e.Type)
	c.string("b", &e.Queue)
	c.string("c", &e.Actor)
	c.string("d", &e.Key)
	c.string("e", &e.Kind)
	number(c, "f", &e.Priority)
	c.int("g", &e.Due)
	c.int("h", &e.Expires)
	number(c, "i", &e.Size)
	c.int("j", &e.Until)
	c.string("k", &e.SourceID)
	c.id("l", (*[16]byte)(&e.Lease))
	c.int("m", &e.LeaseExpires)
	number(c, "n", &e.Attempt)
	c.string("o", &e.Worker)
	number(c, "p", &e.Place)
	number(c, "q", &e.Reason)
	c.string("r", &e.ToQueue)
	c.bool("s", &e.HoldsKey)
	c.bool("t", &e.TakesKey)
	c.string("u", &e.DiedIn)
	number(c, "v", &e.Order)
	c.bool("w", &e.Edited)
	c.id("x", (*[16]byte)(&e.First))
	c.field("y", e.Policy == nil, &e.Policy)
	number(c, "z", &e.Number)
	c.int("A", &e.Count)
	c.id("B", (*[16]byte)(&e.Task))
	number(c, "C", &e.TaskKind)
	c.bool("D", &e.Failed)
	c.string("E", &e.Node)
	c.field("F", len(e.Refs) == 0, &e.Refs)
	c.string("G", &e.Webhook)
	c.bytes("H", &e.Definition)
	c.id("I", (*[16]byte)(&e.Body))
	number(c, "J", &e.Before)
	number(c, "K", &e.Rules)
	c.string("L", &e.CorrelationID)
	c.field("M", len(e.Cause) == 0, &e.Cause)
	c.bool("N", &e.CauseTruncated)
	c.id("O", (*[16]byte)(&e.DedupKey))
}

func (t *Content) fields(c *coder) {
	c.bytes("a", &t.Payload)
	c.bool("b", &t.Binary)
	c.string("c", &t.ContentType)
	list(c, "d", &t.Headers)
	c.string("e", &t.CorrelationID)
	c.string("f", &t.Error)
	c.bytes("g", &t.Result)
	c.bytes("h", &t.Answer)
	c.bytes("i", &t.Spec)
	c.bytes("j", &t.Original)
	c.string("k", &t.Why)
}

func (h *Header) fields(c *coder) {
	c.string("n", &h.Name)
	c.string("v", &h.Value)
}

func (m *Command) fields(c *coder) {
	c.string("Actor", &m.Actor)
	c.blob("Why", &m.Why)
	pointer(c, "Request", &m.Request)
	c.field("PutQueue", m.PutQueue == nil, &m.PutQueue)
	c.field("DeleteQueue", m.DeleteQueue == nil, &m.DeleteQueue)
	c.field("PauseQueue", m.PauseQueue == nil, &m.PauseQueue)
	c.field("PurgeQueue", m.PurgeQueue == nil, &m.PurgeQueue)
	pointer(c, "Produce", &m.Produce)
	pointer(c, "Lease", &m.Lease)
	pointer(c, "Settle", &m.Settle)
	pointer(c, "Transaction", &m.Transaction)
	c.field("Delete", m.Delete == nil, &m.Delete)
	c.field("Reschedule", m.Reschedule == nil, &m.Reschedule)
	c.field("Carry", m.Carry == nil, &m.Carry)
	c.field("Retain", m.Retain == nil, &m.Retain)
	c.field("Mark", m.Mark == nil, &m.Mark)
	c.field("Upgrade", m.Upgrade == nil, &m.Upgrade)
	c.field("Replay", m.Replay == nil, &m.Replay)
	c.field("PurgeDead", m.PurgeDead == nil, &m.PurgeDead)
	c.field("Resurrect", m.Resurrect == nil, &m.Resurrect)
	c.field("CreateTask", m.CreateTask == nil, &m.CreateTask)
	c.field("UpdateTask", m.UpdateTask == nil, &m.UpdateTask)
	c.field("Erase", m.Erase == nil, &m.Erase)
	c.field("PutWebhook", m.PutWebhook == nil, &m.PutWebhook)
	c.field("DeleteWebhook", m.DeleteWebhook == nil, &m.DeleteWebhook)
	c.field("Define", m.Define == nil, &m.Define)
}

func (r *Request) fields(c *coder) {
	c.id("Key", (*[16]byte)(&r.Key))
	c.id("Body", (*[16]byte)(&r.Body))
	number(c, "Looked", &r.Looked)
}

func (p *Produce) fields(c *coder) {
	c.string("Queue", &p.Queue)
	number(c, "Revision", &p.Revision)
	c.bool("AutoCreate", &p.AutoCreate)
	number(c, "Looked", &p.Looked)
	list(c, "Messages", &p.Messages)
	c.bool("Import", &p.Import)
}

func (m *NewMessage) fields(c *coder) {
	c.string("a", &m.Key)
	c.string("b", &m.Kind)
	number(c, "c", &m.Priority)
	c.int("d", &m.DelayMS)
	c.int("e", &m.DeliverAt)
	c.int("f", &m.TTLMS)
	c.id("g", (*[16]byte)(&m.DedupKey))
	c.id("h", (*[16]byte)(&m.PayloadHash))
	number(c, "i", &m.Size)
	c.blob("j", &m.Content)
	c.id("k", (*[16]byte)(&m.Seen))
	c.int("l", &m.SeenUntil)
	c.string("m", &m.SourceID)
	c.id("n", (*[16]byte)(&m.SeenAs))
	c.string("o", &m.CorrelationID)
	c.id("p", (*[16]byte)(&m.Cause))
}

func (l *Lease) fields(c *coder) {
	c.field("Queues", len(l.Queues) == 0, &l.Queues)
	c.field("Max", l.Max == 0, &l.Max)
	c.int("LeaseMS", &l.LeaseMS)
	c.string("Worker", &l.Worker)
	c.field("Kinds", len(l.Kinds) == 0, &l.Kinds)
	c.bool("Single", &l.Single)
}

func (s *Settle) fields(c *coder) {
	c.string("Queue", &s.Queue)
	list(c, "Items", &s.Items)
}

func (i *SettleItem) fields(c *coder) {
	number(c, "a", &i.Op)
	c.id("b", (*[16]byte)(&i.Lease))
	c.int("c", &i.DelayMS)
	c.int("d", &i.LeaseMS)
	c.blob("e", &i.Content)
	c.int("f", &i.At)
}

func (t *Transaction) fields(c *coder) {
	list(c, "Settle", &t.Settle)
	list(c, "Produce", &t.Produce)
}

func (r *Result) fields(c *coder) {
	number(c, "Index", &r.Index)
	c.field("Problem", r.Problem == nil, &r.Problem)
	c.ref("Kept", &r.Kept)
	c.bool("Created", &r.Created)
	c.int("Count", &r.Count)
	list(c, "Produced", &r.Produced)
	list(c, "Leased", &r.Leased)
	list(c, "Settled", &r.Settled)
	c.field("Moved", len(r.Moved) == 0, &r.Moved)
	c.id("ID", (*[16]byte)(&r.ID))
	c.id("Digest", &r.Digest)
}

func (p *Produced) fields(c *coder) {
	c.id("ID", (*[16]byte)(&p.ID))
	c.bool("Duplicate", &p.Duplicate)
}

func (s *Settled) fields(c *coder) {
	c.id("Lease", (*[16]byte)(&s.Lease))
	c.string("Status", &s.Status)
	c.string("Code", &s.Code)
	c.int("NextAt", &s.NextAt)
	c.int("ExpiresAt", &s.ExpiresAt)
	c.id("Message", (*[16]byte)(&s.Message))
	c.string("Queue", &s.Queue)
}

func (m *LeasedMessage) fields(c *coder) {
	c.id("ID", (*[16]byte)(&m.ID))
	c.string("Queue", &m.Queue)
	c.string("Key", &m.Key)
	c.string("Kind", &m.Kind)
	number(c, "State", &m.State)
	c.bool("Held", &m.Held)
	number(c, "Priority", &m.Priority)
	number(c, "Attempt", &m.Attempt)
	number(c, "Size", &m.Size)
	c.int("EnqueuedAt", &m.EnqueuedAt)
	c.int("Due", &m.Due)
	c.int("Expires", &m.Expires)
	c.id("Lease", (*[16]byte)(&m.Lease))
	c.int("LeaseExpiresAt", &m.LeaseExpiresAt)
	c.ref("Content", &m.Content)
	c.ref("Last", &m.Last)
	c.field("Dead", m.Dead == nil, &m.Dead)
	c.field("Origin", m.Origin == nil, &m.Origin)
	number(c, "MaxAttempts", &m.MaxAttempts)
	c.id("Behind", (*[16]byte)(&m.Behind))
}

// fields puts the result's fields beside the answer's own.
func (a *Answer) fields(c *coder) {
	a.Result.fields(c)
	c.field("Refusal", a.Refusal == nil, &a.Refusal)
	c.bool("Back", &a.Back)
}
