package main

import (
	"context"
	"errors"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/replay"
)

// newErasures returns this node's part of erasures. It must be there before the
// first entry is applied: it counts what is appended.
func (e *engine) newErasures() (*erasure.Node, error) {
	o := erasure.NodeOptions{
		Log: e.log, FS: vfs.OS{}, DataDir: e.c.DataDir, Tasks: e.machine.Tasks, Erased: e.machine.TakeErased, Logger: e.logger,
		Self:    func() string { return e.replica.Self() },
		Propose: func(ctx context.Context, c *event.Command) (event.Result, error) { return e.replica.Propose(ctx, c) },
		Shed:    func(ctx context.Context, upTo uint64) error { return e.replica.Shed(ctx, upTo) },
		Fetched: e.discardFetched,
	}
	if e.archiver != nil {
		o.Archive = func(ctx context.Context, refs []event.Ref) error { return e.archiver.Refresh(ctx, logRefs(refs)) }
	}
	return erasure.NewNode(o)
}

// eraser carries erasures out where this node leads.
func (e *engine) eraser() *erasure.Carrier {
	c := &erasure.Carrier{
		Finder:  erasure.Finder{Log: e.log, State: e.machine},
		Propose: e.replica.Propose,
		Members: func() (out []string) {
			for _, m := range e.replica.Members() {
				out = append(out, m.Server())
			}
			return out
		},
	}
	if e.archiver != nil {
		c.OpenPast = e.openPast
		c.Archive = func(ctx context.Context, refs []event.Ref) error { return e.archiver.Erase(ctx, logRefs(refs)) }
	}
	return c
}

// discardFetched throws away what was fetched and is not in place.
func (e *engine) discardFetched() error {
	if !e.fetching.TryLock() {
		return errors.New("this node is fetching what it lacks")
	}
	defer e.fetching.Unlock()
	return fetch.Discard(vfs.OS{}, e.c.DataDir)
}

// openPast opens the log as it is with the archive before it; nil if the archive goes back no
// further.
func (e *engine) openPast(ctx context.Context) (erasure.Reader, func(), error) {
	if _, deleted := e.log.DeletedBefore(); !deleted {
		return nil, func() {}, nil
	}
	mounted, err := e.archiver.Mount(ctx)
	if mounted == nil || err != nil {
		return nil, func() {}, err
	}
	if mounted.Missing != "" {
		e.logger.Warn(mounted.Missing)
	}
	d, err := replay.OpenOn(mounted, e.c.DataDir, e.card)
	if err != nil {
		return nil, func() {}, err
	}
	return d.Log, func() { _ = d.Close() }, nil // files that were only read
}

func logRefs(refs []event.Ref) []log.Ref {
	out := make([]log.Ref, len(refs))
	for i, r := range refs {
		out[i] = log.Ref(r)
	}
	return out
}

// erasable is what the api asks of erasures.
type erasable struct{ e *engine }

// counted is how many ids are told.
const counted = 100

// Message implements api.Eraser.
func (x erasable) Message(ctx context.Context, id event.ID) (out api.Erasable, err error) {
	c := x.e.eraser()
	err = x.count(ctx, &c.Finder, id, &out)
	if err != nil || out.Messages > 0 || c.OpenPast == nil {
		return out, err
	}
	past, done, err := c.OpenPast(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	c.Past = past
	return out, x.count(ctx, &c.Finder, id, &out)
}

// Key implements api.Eraser.
func (x erasable) Key(ctx context.Context, queue, key string) (out api.Erasable, err error) {
	c := x.e.eraser()
	if c.OpenPast != nil {
		past, done, err := c.OpenPast(ctx)
		if err != nil {
			return out, err
		}
		defer done()
		c.Past = past
	}
	all := event.ID{}
	for i := range all {
		all[i] = 0xff
	}
	return out, c.Key(ctx, queue, key, all, func(id event.ID) error { return x.count(ctx, &c.Finder, id, &out) })
}

func (x erasable) count(ctx context.Context, f *erasure.Finder, id event.ID, out *api.Erasable) error {
	found, err := f.Message(ctx, id)
	if err != nil || len(found.IDs) == 0 {
		return err
	}
	out.Messages++
	if len(out.IDs) < counted {
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

// Members implements api.Eraser.
func (x erasable) Members() []string { return x.e.eraser().Members() }

// Spec implements api.Eraser.
func (x erasable) Spec(id event.ID, queue, key, reason string) []byte {
	s := erasure.Spec{Queue: queue, Key: key, Reason: reason}
	if !id.IsZero() {
		s.Message = id.String()
	}
	return s.Encode()
}
