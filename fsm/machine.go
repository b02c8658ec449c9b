// Package fsm is the replicated state machine: it turns a command and the state into events
// and an answer. It is pure except for Log.Append: time is the entry's, and the same entries
// give the same events on every node (I5).
package fsm

import (
	"fmt"
	"slices"
	"sync"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// Log receives the decided blocks. Append must be visible to readers before it returns;
// it need not sync (I1: the Raft log can supply the entry again until a checkpoint has
// made the event log durable).
type Log interface {
	// Append must not keep b.Events: the machine reuses the slice.
	Append(b *event.Block) error
}

// Machine is one replica's state machine. Apply is called by one goroutine;
// the read methods may be called by any.
type Machine struct {
	log   Log
	known uint16 // the newest rules of deciding that it accepts

	mu    sync.RWMutex
	state *projections.State // guarded by mu

	news   news          // guarded by mu
	events []event.Event // the last block's, empty, for the next one; Apply's
}

// keepEvents bounds the memory that the machine keeps for the next block.
const keepEvents = 4096

// New returns a machine that continues from state.
func New(state *projections.State, log Log) *Machine {
	return &Machine{state: state, log: log, known: event.Rules}
}

// Apply decides the entry at index, appends its block and returns an answer to each
// command. An index that the state has already is skipped (I4: never decided twice),
// without answers. An error means that this replica cannot continue: the entry requires
// rules that this binary does not know, or the log failed.
func (m *Machine) Apply(index uint64, data []byte) ([]event.Result, error) {
	entry, err := event.DecodeEntry(data)
	if err != nil {
		return nil, fmt.Errorf("apply %d: %w", index, err)
	}
	if entry.Rules == 0 {
		return nil, fmt.Errorf("apply %d: the entry does not say which rules it wants", index)
	}
	// Rules in force count too: entries that were proposed before they came into force
	// are decided by them (I19).
	if wants := max(entry.Rules, m.Rules()); wants > m.known {
		return nil, fmt.Errorf("entry %d requires rules version %d, this binary supports up to %d",
			index, wants, m.known)
	}
	commands := make([]event.Command, len(entry.Commands))
	for i, b := range entry.Commands {
		if err := commands[i].Decode(b); err != nil {
			return nil, fmt.Errorf("apply %d: command %d: %w", index, i, err)
		}
	}
	return m.apply(index, entry, commands)
}

func (m *Machine) apply(index uint64, entry *event.Entry,
	commands []event.Command) ([]event.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if index <= m.state.Index() {
		return nil, nil
	}
	d := &decision{s: m.state, wants: entry.Rules,
		block: event.Block{Index: index, Time: entry.Time, Events: m.events}}
	d.s.Begin(index, entry.Time)
	d.due()
	results := make([]event.Result, len(commands))
	for i := range commands {
		results[i] = d.command(&commands[i])
		results[i].Index = index
	}
	d.mark(commands, results)
	if err := m.log.Append(&d.block); err != nil {
		return nil, fmt.Errorf("apply %d: %w", index, err)
	}
	m.news.note(index, d.block.Events)
	if m.events = nil; cap(d.block.Events) <= keepEvents {
		clear(d.block.Events) // they hold payloads
		m.events = d.block.Events[:0]
	}
	return results, nil
}

// decision builds one block. Each event is folded as soon as it is decided, so that the
// next command sees it.
type decision struct {
	s     *projections.State
	block event.Block
	actor string
	why   event.Blob // the command's
	wants uint16     // the entry's rules

	passed int // messages that died in the entry instead of being leased

	sent     map[event.ID]event.Settled // leases that the command has sent back (sendBack)
	extended extended                   // the last part of a batch that was extended
}

// emit adds an event to the block: sets its id, and folds it.
func (d *decision) emit(e event.Event) event.ID {
	e.ID = event.NewID(d.s.Clock(), d.block.Index, uint32(len(d.block.Events)))
	if e.Type == event.Leased {
		e.Lease = e.ID
	}
	e.Actor = d.actor
	d.block.Events = append(d.block.Events, e)
	d.s.Apply(&d.block.Events[len(d.block.Events)-1])
	return e.ID
}

// about returns an event of a message with the common fields set.
func about(t event.Type, m *event.MessageView) event.Event {
	return event.Event{Type: t, Subject: m.ID, Prev: m.Last, Queue: m.Queue, Attempt: m.Attempt}
}

// expect reserves space for n more events.
func (d *decision) expect(n int) { d.block.Events = slices.Grow(d.block.Events, n) }

// command decides one command. A command with an Idempotency-Key is executed once; only
// answers without a problem are kept.
func (d *decision) command(c *event.Command) event.Result {
	d.actor, d.why = c.Actor, c.Why
	clear(d.sent)
	if q := c.Request; q != nil {
		if id, body, ok := d.s.Answer(q.Key); ok {
			if body != q.Body {
				return problem(event.Problemf(event.CodeKeyReused, "Idempotency-Key",
					"this Idempotency-Key came with another request before"))
			}
			return event.Result{Kept: event.RefOf(id)}
		}
		if floor := d.s.AnswerFloor(); q.Looked < floor {
			return problem(stale(
				"the log was asked for this request up to index %d, it must be to %d", q.Looked,
				floor))
		}
	}
	r := d.decide(c)
	if c.Request != nil && r.Problem == nil {
		r.Index = d.block.Index
		d.emit(event.Event{
			Type: event.AnswerKept, Alias: c.Request.Key, Body: c.Request.Body,
			Until:   d.s.Clock() + event.KeepAnswersMS,
			Content: event.EncodeContent(&event.Content{Answer: event.EncodeResult(&r)}),
		})
	}
	d.actor = ""
	return r
}

func (d *decision) decide(c *event.Command) event.Result {
	switch {
	case c.Produce != nil:
		return d.produce(c.Produce)
	case c.Lease != nil:
		return d.lease(c.Lease)
	case c.Settle != nil:
		return d.settle(c.Settle)
	case c.Transaction != nil:
		return d.transaction(c.Transaction)
	case c.PutQueue != nil:
		return d.putQueue(c.PutQueue)
	case c.DeleteQueue != nil:
		return d.deleteQueue(c.DeleteQueue)
	case c.PauseQueue != nil:
		return d.pauseQueue(c.PauseQueue)
	case c.PurgeQueue != nil:
		return d.purgeQueue(c.PurgeQueue)
	case c.Delete != nil:
		return d.deleteMessage(c.Delete)
	case c.Reschedule != nil:
		return d.reschedule(c.Reschedule)
	case c.Carry != nil:
		return d.carry(c.Carry)
	case c.Retain != nil:
		return d.retain(c.Retain)
	case c.Upgrade != nil:
		return d.upgrade(c.Upgrade)
	case c.Erase != nil:
		return d.erase(c.Erase)
	case c.PutWebhook != nil:
		return d.putWebhook(c.PutWebhook)
	case c.DeleteWebhook != nil:
		return d.deleteWebhook(c.DeleteWebhook)
	case c.Define != nil:
		return d.define(c.Define)
	case c.Replay != nil:
		return d.replay(c.Replay)
	case c.PurgeDead != nil:
		return d.purgeDead(c.PurgeDead)
	case c.Resurrect != nil:
		return d.resurrect(c.Resurrect)
	case c.CreateTask != nil:
		return d.createTask(c.CreateTask)
	case c.UpdateTask != nil:
		return d.updateTask(c.UpdateTask)
	}
	return event.Result{}
}

func problem(p *event.Problem) event.Result { return event.Result{Problem: p} }

func invalid(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeInvalidArgument, field, format, args...)
}

func conflict(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeConflict, field, format, args...)
}

// stale rejects a command that was prepared against an older state; the node that received
// the request prepares it again.
func stale(format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeStaleRevision, "", format, args...)
}

// schemaChanged rejects payloads that were checked against another revision of a queue's
// schema.
func schemaChanged(q *event.QueueView, revision uint64) *event.Problem {
	if revision == q.Revision || len(q.Policy.MessageSchema) == 0 {
		return nil
	}
	return stale("checked against revision %d of the policy, now it is %d", revision, q.Revision)
}

func queueNotFound(name, field string) *event.Problem {
	return event.Problemf(event.CodeQueueNotFound, field, "queue %q does not exist", name)
}
