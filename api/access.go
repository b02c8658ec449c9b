package api

import (
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/event"
)

// access is a route's access rule if there is an auth file: the role that the token needs, and on
// which queues.
type access struct {
	role role
	on   where
}

// where is on which queues a token needs the role.
type where uint8

const (
	nobody        where = iota // no rule: a route that was forgotten is closed
	open                       // everybody, without a token
	authenticated              // any token; the handler checks the parts of the request
	anyQueue                   // the role on any queue; the handler checks or filters queues
	pathQueue                  // the role on the queue in the path
	allQueues                  // the role on all queues
)

// refused checks the request's token against its route's rule and sets q.who. It runs before the
// state is read, so the answer does not reveal whether a queue exists.
func (q *request) refused(rule access) error {
	auth := q.s.opts.Auth
	if auth == nil || rule.on == open {
		return nil
	}
	if err := q.identify(); err != nil {
		return err
	}
	if rule.on == authenticated ||
		rule.on == anyQueue && q.who.roles&(rule.role|roleAdmin) != 0 ||
		rule.on == pathQueue && q.who.may(rule.role, q.PathValue("queue")) ||
		rule.on == allQueues && q.who.mayAll(rule.role) {
		return nil
	}
	return q.forbidden(rule.role)
}

// identify sets q.who from the token. It is called again after a wait, because tokens expire.
func (q *request) identify() error {
	sum, inProcess := q.Context().Value(tokenKey{}).([sha256.Size]byte)
	if !inProcess {
		token, err := q.bearer()
		if err != nil {
			return err
		}
		sum = sha256.Sum256([]byte(token))
	}
	p := q.s.opts.Auth.find(sum)
	switch {
	case p == nil:
		return q.unauthenticated("invalid_token", "the token is not known here, or was revoked")
	case p.expired():
		return q.unauthenticated("invalid_token", "the token has expired")
	}
	q.who = p
	return nil
}

// bearer returns the token of the Authorization header.
func (q *request) bearer() (string, error) {
	h := q.Header["Authorization"]
	if len(h) == 0 {
		return "", q.unauthenticated("", "this server requires a token: Authorization: Bearer TOKEN")
	}
	scheme, token, _ := strings.Cut(h[0], " ")
	if len(h) > 1 || !strings.EqualFold(scheme, "Bearer") || !visible(token, 512) {
		return "", q.unauthenticated("invalid_request",
			"Authorization must be one header: Bearer TOKEN")
	}
	return token, nil
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

// may returns an error unless the token has a role on a queue.
func (q *request) may(r role, queue string) error {
	if q.who != nil && !q.who.may(r, queue) {
		return q.forbidden(r)
	}
	return nil
}

// sees reports whether the token may read a queue. "" is no queue: only a token that may read all
// queues sees it.
func (q *request) sees(queue string) bool { return q.who == nil || q.who.may(roleRead, queue) }

// seesEvent reports whether the token may read an event: one of its queues', or a move into one.
func (q *request) seesEvent(e *event.Event) bool { return q.sees(e.Queue) || q.sees(e.ToQueue) }

// maySettle returns an error unless the token may settle all these leases.
func (q *request) maySettle(items []event.SettleItem) error {
	for _, item := range items {
		switch ok, err := q.mayEnd(item.Lease); {
		case err != nil:
			return err
		case !ok:
			return event.Problemf(codeForbidden, "Authorization", "the token of %s may not settle "+
				"lease %s, or it has ended and the log no longer has its beginning (POST "+
				"/v1/queues/{queue}/ack and the like do not need it)", echo(q.who.name), item.Lease)
		}
	}
	return nil
}

// settleable returns the items, without the lease id in those that the token may not settle. Such
// items are answered as lost, as unknown leases are, so the answer does not reveal which exist.
func (q *request) settleable(items []event.SettleItem) ([]event.SettleItem, error) {
	out, copied := items, false
	for i := range items {
		ok, err := q.mayEnd(items[i].Lease)
		if err != nil {
			return nil, err
		}
		if !ok && !copied {
			out, copied = slices.Clone(items), true
		}
		if !ok {
			out[i] = event.SettleItem{Op: items[i].Op}
		}
	}
	return out, nil
}

// mayEnd reports whether the token may consume from the queue of a lease; false if the lease is
// unknown. Checking before the proposal is no race: a lease belongs for ever to the queue that its
// event in the log names, and a message that moves to another queue has ended its lease.
func (q *request) mayEnd(lease event.ID) (bool, error) {
	if q.who == nil || q.who.mayAll(roleConsume) {
		return true, nil
	}
	leased, err := q.leasedEvent(lease)
	if err != nil {
		return false, err
	}
	m, current := q.s.deps.State.ByLease(lease) // also where retention has deleted its event
	return leased != nil && q.who.may(roleConsume, leased.Queue) ||
		current && q.who.may(roleConsume, m.Queue), nil
}

// leasedEvent returns the event that created a lease, nil if the log does not have it (any more).
func (q *request) leasedEvent(lease event.ID) (*event.Event, error) {
	log, ref := q.s.deps.Log, event.RefOf(lease)
	if ref.Index > log.Head() && !q.caughtUp { // this node may be behind
		if err := q.s.barrier(q.Context()); err != nil {
			return nil, err
		}
		q.caughtUp = true // once is enough for all leases of the request
	}
	if ref.Index > log.Head() {
		return nil, nil
	}
	switch e, err := log.Event(ref); {
	case gone(err), notFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case e.ID != lease || e.Type != event.Leased:
		return nil, nil
	default:
		return e, nil
	}
}
