package api

import (
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/qlogd/qlogd/event"
)

// access is who may call a route, where there is an auth file. Every route has
// one: mux takes none without.
type access struct {
	role role // what the token must be allowed
	on   where
}

// where says on which queues.
type where uint8

const (
	nobody   where = iota // no rule: a route that was forgotten is closed
	open                  // everybody, without a token
	known                 // any token; the handler asks for what its parts need
	somehow               // the role; the handler asks for each queue, or shows those alone that match
	onPath                // the role on the queue that the path names
	anywhere              // the role on all queues
)

// refused checks the request's token against its route's rule. It sets q.who.
// Nothing of what is there is looked at before: the answer is the same for a
// queue that exists and one that does not.
func (q *request) refused(rule access) error {
	auth := q.s.opts.Auth
	if auth == nil || rule.on == open {
		return nil
	}
	if err := q.identify(); err != nil {
		return err
	}
	ok := false
	switch rule.on {
	case known:
		ok = true
	case somehow:
		ok = q.who.roles&(rule.role|roleAdmin) != 0
	case onPath:
		ok = q.who.may(rule.role, q.PathValue("queue"))
	case anywhere:
		ok = q.who.mayAll(rule.role)
	}
	if !ok {
		return q.forbidden(rule.role)
	}
	return nil
}

// identify finds out who asks. Called again, it is who the token stands for by
// then: tokens are taken back and run out while a request waits.
func (q *request) identify() error {
	h := q.Header["Authorization"]
	if len(h) == 0 {
		return q.unauthenticated("", "this server wants a token: Authorization: Bearer TOKEN")
	}
	scheme, token, _ := strings.Cut(h[0], " ")
	if len(h) > 1 || !strings.EqualFold(scheme, "Bearer") || !visible(token, maxToken) {
		return q.unauthenticated("invalid_request", "Authorization must be one header: Bearer TOKEN")
	}
	p := q.s.opts.Auth.find(sha256.Sum256([]byte(token)))
	switch {
	case p == nil:
		return q.unauthenticated("invalid_token", "the token is not known here, or has been taken back")
	case !p.expires.IsZero() && !time.Now().Before(p.expires):
		return q.unauthenticated("invalid_token", "the token has expired")
	}
	q.who = p
	return nil
}

func (q *request) unauthenticated(why, detail string) error {
	v := "Bearer"
	if why != "" {
		v += ` error="` + why + `"`
	}
	if q.status == 0 {
		q.w.Header().Set("WWW-Authenticate", v)
	}
	return event.Problemf(codeUnauthenticated, "Authorization", "%s", detail)
}

func (q *request) forbidden(r role) error {
	return event.Problemf(codeForbidden, "Authorization", "the token of %s has not the right to %s that this needs", echo(q.who.name), r)
}

// may refuses unless the token has a role on a queue.
func (q *request) may(r role, queue string) error {
	if q.who != nil && !q.who.may(r, queue) {
		return q.forbidden(r)
	}
	return nil
}

// sees reports whether the token may read a queue.
func (q *request) sees(queue string) bool { return q.who == nil || q.who.may(roleRead, queue) }

// seesEvent reports whether the token may read an event: one of its queues', a
// move into one included. What is of no queue is for those who may read all.
func (q *request) seesEvent(e *event.Event) bool {
	if q.who == nil || q.who.mayAll(roleRead) {
		return true
	}
	return e.Queue != "" && q.who.may(roleRead, e.Queue) || e.ToQueue != "" && q.who.may(roleRead, e.ToQueue)
}

// maySettle refuses unless the token may consume from the queues of all these
// leases. There is no race in asking before: a lease is of the queue that it was
// given in, which its event in the log says, for ever; a message that goes to
// another queue has ended it. A lease that nobody knows is refused like one of
// another queue, so that nobody learns which there are.
func (q *request) maySettle(items []event.SettleItem) error {
	if q.who == nil || q.who.mayAll(roleConsume) {
		return nil
	}
	var last *event.Block // leases of one call are in one
	for i := range items {
		queue, err := q.leaseQueue(items[i].Lease, &last)
		if err != nil {
			return err
		}
		if queue == "" || !q.who.may(roleConsume, queue) {
			return event.Problemf(codeForbidden, "Authorization",
				"the token of %s may not settle lease %s, or the log no longer holds its beginning (POST /v1/queues/{queue}/ack and the like don't need it)", echo(q.who.name), items[i].Lease)
		}
	}
	return nil
}

// leaseQueue returns the queue that a lease was given in, "" where the log does
// not know it (any more). last is the block of the call before.
func (q *request) leaseQueue(lease event.ID, last **event.Block) (string, error) {
	log, index := q.s.deps.Log, event.RefOf(lease).Index
	if index > log.Head() { // this node may be behind
		if err := q.s.barrier(q.Context()); err != nil {
			return "", err
		}
		if index > log.Head() {
			return "", nil
		}
	}
	if *last == nil || (*last).Index != index {
		next, done := log.Blocks(index)
		defer done()
		b, err := next(q.Context())
		if err != nil {
			if q.s.gone(err) || q.s.notFound(err) || errors.Is(err, io.EOF) {
				err = nil
			}
			return "", err
		}
		*last = b
	}
	b := *last
	if b.Index != index { // it is gone, and this is the first that is kept
		return "", nil
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.ID == lease && e.Type == event.Leased {
			return e.Queue, nil
		}
	}
	return "", nil
}
