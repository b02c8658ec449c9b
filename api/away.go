package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/qlogd/qlogd/event"
)

// A lease that has to wait for longer waits at the leader: that knows first what
// is produced anywhere, and lets the lease go along with it into the same entry.
// It is a call that stays open until there is an answer, and nothing is kept of it
// at either side when it ends: where it breaks, the lease waits on at its own
// node, and what was leased for it meanwhile is released by who leased it.

// AskWait is the name of the question that WaitHere answers:
//
//	version u8 · wait u32, ms · an encoded Command, a lease
//
// The answer is one encoded Answer.
const AskWait = "api.wait"

const (
	waitVersion = 1
	waitHead    = 1 + 4
	// waitGrace is how much longer than it is to wait the leader may take.
	waitGrace = 2 * time.Second
)

// waitAtLeader has a lease wait at the leader. ended says that it has waited to
// the end, or was leased something; else it may wait on here.
func (s *Server) waitAtLeader(ctx context.Context, c *event.Command, wait time.Duration) (res event.Result, ended bool, err error) {
	if wait < time.Millisecond {
		return res, false, nil
	}
	begun := time.Now()
	body := binary.BigEndian.AppendUint32([]byte{waitVersion}, uint32(wait.Milliseconds()))
	body = append(body, event.EncodeCommand(c)...)
	asking, cancel := context.WithTimeout(ctx, wait+waitGrace)
	defer cancel()
	stop := context.AfterFunc(s.undrained, cancel)
	defer stop()
	b, err := s.deps.AskLeader(asking, AskWait, body)
	if err != nil {
		return res, ctx.Err() != nil, ctx.Err()
	}
	answers, err := event.DecodeAnswers(b, 1)
	if err != nil {
		return res, true, fmt.Errorf("%s: %w", AskWait, err)
	}
	if p := answers[0].Refusal; p != nil {
		if p.Unknown {
			return res, true, p
		}
		return res, false, nil
	}
	if res = answers[0].Result; len(res.Leased) == 0 {
		return res, time.Since(begun) >= wait, nil
	}
	// Its contents are read here.
	landing, cancel := s.deadline(context.WithoutCancel(ctx))
	defer cancel()
	if err := s.deps.Proposer.Landed(landing, res.Index); err != nil {
		s.releaseAll(res.Leased)
		return event.Result{}, true, &event.Problem{Code: codeNoLeader, Index: -1, RetryAfterMS: 1000, Detail: "this node is behind the leader; ask another one"}
	}
	return res, true, nil
}

// WaitHere answers another node's AskWait: its lease waits in line here.
func (s *Server) WaitHere(ctx context.Context, body []byte) ([]byte, error) {
	if len(body) < waitHead || body[0] != waitVersion {
		return nil, errors.New("a question of another version")
	}
	wait := time.Duration(binary.BigEndian.Uint32(body[1:])) * time.Millisecond
	c, err := event.DecodeCommand(body[waitHead:])
	if err != nil {
		return nil, err
	}
	if c.Lease == nil || wait > event.MaxWaitMS*time.Millisecond {
		return nil, errors.New("not a lease that waits")
	}
	res, err := s.leaseHere(ctx, c, wait)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	answer := event.Answer{Result: res}
	if err != nil {
		if !errors.As(err, &answer.Refusal) {
			return nil, err
		}
	}
	return event.EncodeAnswers([]event.Answer{answer}), nil
}

// leaseHere waits in line here for work, for nobody who has a request in hand.
// What was leased when ctx had ended is given back.
func (s *Server) leaseHere(ctx context.Context, c *event.Command, wait time.Duration) (res event.Result, err error) {
	w := newWaiter(c.Lease.Queues, c.Lease.Kinds, c.Lease.Max)
	w.ask = func() *event.Command {
		if ctx.Err() != nil {
			return nil
		}
		return c
	}
	call := waiting{ws: s.waits, w: w, drain: s.drain, fresh: func() error { return s.barrier(ctx) }}
	call.take = func(sent pendingWrite) (n int, err error) {
		ctx, cancel := s.deadline(context.WithoutCancel(ctx))
		defer cancel()
		if sent == nil {
			res, err = s.propose(ctx, c, "")
		} else if res, err = s.track(ctx, c, "", sent); !unknown(err) {
			err = nil
		}
		return len(res.Leased), err
	}
	err = call.lease(ctx, wait)
	if ctx.Err() != nil && len(res.Leased) > 0 {
		s.releaseAll(res.Leased)
		return event.Result{}, ctx.Err()
	}
	return res, err
}

// Along returns the leases of those who wait here for what another node's command
// is about to enqueue. begun is to be called with what waits for their answers,
// also where they were not proposed.
func (s *Server) Along(command []byte) (leases []*event.Command, begun func(answers []func(context.Context) (event.Result, error))) {
	if s.waits.waiting.Load() == 0 {
		return nil, nil
	}
	c, err := event.DecodeCommand(command)
	if err != nil {
		return nil, nil // told by who executes it
	}
	along := s.sendLeases(c)
	for _, w := range along.to {
		w.unsure = true // nobody here will know whether it was refused
	}
	return along.leases, along.tell
}
