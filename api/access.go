package api

import (
	"crypto/sha256"
	"strings"
	"time"

	"github.com/qlogd/qlogd/event"
)

// access is a route's rule where there is an auth file: the role that the token needs, and where.
type access struct {
	role role
	on   where
}

type where uint8

const (
	nobody   where = iota // no rule: a route that was forgotten is closed
	open                  // everybody, without a token
	known                 // any token; the handler checks the parts of the request
	somehow               // the role; the handler checks each queue, or shows only matching ones
	onPath                // the role on the queue in the path
	anywhere              // the role on all queues
)

// refused checks the request's token against its route's rule. It sets q.who. It runs before the
// state is read: the answer is the same whether a queue exists or not.
func (q *request) refused(rule access) error {
	auth := q.s.opts.Auth
	if auth == nil || rule.on == open {
		return nil
	}
	if err := q.identify(); err != nil {
		return err
	}
	if rule.on == known ||
		rule.on == somehow && q.who.roles&(rule.role|roleAdmin) != 0 ||
		rule.on == onPath && q.who.may(rule.role, q.PathValue("queue")) ||
		rule.on == anywhere && q.who.mayAll(rule.role) {
		return nil
	}
	return q.forbidden(rule.role)
}

// identify sets q.who from the token. A request that has waited asks again: tokens expire.
func (q *request) identify() error {
	h := q.Header["Authorization"]
	if len(h) == 0 {
		return q.unauthenticated("", "this server requires a token: Authorization: Bearer TOKEN")
	}
	scheme, token, _ := strings.Cut(h[0], " ")
	if len(h) > 1 || !strings.EqualFold(scheme, "Bearer") || !visible(token, maxToken) {
		return q.unauthenticated("invalid_request",
			"Authorization must be one header: Bearer TOKEN")
	}
	p := q.s.opts.Auth.find(sha256.Sum256([]byte(token)))
	switch {
	case p == nil:
		return q.unauthenticated("invalid_token", "the token is not known here, or was revoked")
	case !p.expires.IsZero() && !time.Now().Before(p.expires):
		return q.unauthenticated("invalid_token", "the token has expired")
	}
	q.who = p
	return nil
}

func (q *request) unauthenticated(why, detail string) error {
	if why != "" {
		why = ` error="` + why + `"`
	}
	if q.status == 0 {
		q.w.Header().Set("WWW-Authenticate", "Bearer"+why)
	}
	return event.Problemf(codeUnauthenticated, "Authorization", "%s", detail)
}

func (q *request) forbidden(r role) error {
	return event.Problemf(codeForbidden, "Authorization",
		"the token of %s lacks the role %s that this needs", echo(q.who.name), r)
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

// seesEvent reports whether the token may read an event: of one of its queues, or a move into one.
// Events of no queue need the role on all queues.
func (q *request) seesEvent(e *event.Event) bool {
	return q.who == nil || q.who.mayAll(roleRead) ||
		e.Queue != "" && q.who.may(roleRead, e.Queue) ||
		e.ToQueue != "" && q.who.may(roleRead, e.ToQueue)
}

// maySettle refuses unless the token may consume from the queues of all these leases. There is no
// race in checking first: a lease belongs for ever to the queue that its event in the log names; a
// message that moves to another queue has ended it. An unknown lease is refused like one of another
// queue, so that nobody learns which exist.
func (q *request) maySettle(items []event.SettleItem) error {
	if q.who == nil || q.who.mayAll(roleConsume) {
		return nil
	}
	for _, item := range items {
		queue, err := q.leaseQueue(item.Lease)
		if err != nil {
			return err
		}
		if queue == "" || !q.who.may(roleConsume, queue) {
			return event.Problemf(codeForbidden, "Authorization", "the token of %s may not settle "+
				"lease %s, or the log no longer has its beginning (POST /v1/queues/{queue}/ack "+
				"and the like do not need it)", echo(q.who.name), item.Lease)
		}
	}
	return nil
}

// leaseQueue returns the queue of a lease, "" where the log does not have it (any more).
func (q *request) leaseQueue(lease event.ID) (string, error) {
	log, ref := q.s.deps.Log, event.RefOf(lease)
	if ref.Index > log.Head() { // this node may be behind
		if err := q.s.barrier(q.Context()); err != nil || ref.Index > log.Head() {
			return "", err
		}
	}
	switch e, err := log.Event(ref); {
	case err != nil && (gone(err) || notFound(err)):
		return "", nil
	case err != nil:
		return "", err
	case e.ID != lease || e.Type != event.Leased:
		return "", nil
	default:
		return e.Queue, nil
	}
}
