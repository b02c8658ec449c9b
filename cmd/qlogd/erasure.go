package main

import (
	"context"
	"errors"

	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/event"
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
		o.Archive = e.archiver.Refresh
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
		c.Archive = e.archiver.Erase
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
