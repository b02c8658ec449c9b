package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// Settlement is what becomes of one lease.
type Settlement struct {
	LeaseID string
	Do      Verb
	Error   string         // DoRetry, DoDeadLetter: why, at most 64 KiB
	Delay   *time.Duration // DoRetry: until the next try; nil is the policy's backoff
	Lease   time.Duration  // DoExtend: from now; 0 is the policy's
}

// Verb is a way to settle a lease.
type Verb string

// The ways to settle a lease. DoExtend settles nothing: it lets the lease end
// later.
const (
	DoAck        Verb = "ack"
	DoRetry      Verb = "retry"
	DoDeadLetter Verb = "dead-letter"
	DoExtend     Verb = "extend"
	DoRelease    Verb = "release"
)

// Settle settles one lease of a queue. It is for many goroutines at once: their
// settlements share requests, as messages do in Enqueue, and each gets its own
// answer. A lease that is lost is ErrLeaseLost.
func (c *Client) Settle(ctx context.Context, queue string, s Settlement) (wire.SettleResult, error) {
	out, err := c.settleLane(queue, s.Do).do(ctx, s, s.size())
	if err == nil {
		err = lost(&out)
	}
	return out, err
}

// lost is the error of a settlement that was rejected.
func lost(r *wire.SettleResult) error {
	if r.Status != "rejected" {
		return nil
	}
	return &Error{Problem: wire.Problem{
		Status: http.StatusConflict, Code: r.Code, Title: "The lease is lost", Outcome: wire.NotApplied,
		Detail: "lease " + r.LeaseID + " is not, or no longer, its message's current one",
	}}
}

func (s *Settlement) size() int { return 64 + len(s.Error) }

type (
	settleLane   = lane[Settlement, wire.SettleResult]
	settleTicket = ticket[Settlement, wire.SettleResult]
)

// laneKey names a lane of settlements: those of a queue that go to one path.
type laneKey struct {
	queue string
	verb  Verb
}

func (c *Client) settleLane(queue string, verb Verb) *settleLane {
	if verb == DoDeadLetter {
		verb = DoRetry // which does both
	}
	key := laneKey{queue, verb}
	v, ok := c.lanes.Load(key)
	if !ok {
		v, _ = c.lanes.LoadOrStore(key, c.newSettleLane(key))
	}
	return v.(*settleLane)
}

func (c *Client) newSettleLane(k laneKey) *settleLane {
	path := queuePath(k.queue, "/"+string(k.verb))
	list, body := "items", itemsOf
	switch k.verb {
	case DoAck:
		list, body = "lease_ids", func(s []Settlement) any { return &wire.AckRequest{LeaseIDs: leasesOf(s)} }
	case DoRelease:
		list, body = "lease_ids", func(s []Settlement) any { return &wire.ReleaseRequest{LeaseIDs: leasesOf(s)} }
	case DoExtend:
		body = extensionsOf
	}
	return &settleLane{c: c, list: list, send: func(ctx context.Context, s []Settlement) ([]wire.SettleResult, error) {
		var out wire.SettleResponse
		_, err := c.send(ctx, &call{method: http.MethodPost, path: path, body: body(s), settle: true, query: url.Values{}, spread: true}, &out, nil)
		return out.Results, err
	}}
}

func leasesOf(s []Settlement) []string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = s[i].LeaseID
	}
	return out
}

func itemsOf(s []Settlement) any {
	out := make([]wire.RetryItem, len(s))
	for i := range s {
		out[i] = wire.RetryItem{LeaseID: s[i].LeaseID, Error: s[i].Error}
		if s[i].Do == DoDeadLetter {
			no := false
			out[i].Retryable = &no
		} else if d := s[i].Delay; d != nil {
			ms := d.Milliseconds()
			out[i].DelayMS = &ms
		}
	}
	return &wire.RetryRequest{Items: out}
}

func extensionsOf(s []Settlement) any {
	out := make([]wire.ExtendItem, len(s))
	for i := range s {
		out[i] = wire.ExtendItem{LeaseID: s[i].LeaseID, LeaseMS: s[i].Lease.Milliseconds()}
	}
	return &wire.ExtendRequest{Items: out}
}
