package api

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/qlogd/qlogd/event"
)

// params reads the parts of a request. The first error sticks and later reads return zero
// values, so that a handler checks err once, when it has read everything.
type params struct {
	q   *request
	err error
}

// read begins to read a request whose query may have these parameters.
func (q *request) read(query ...string) *params {
	return &params{q: q, err: q.allow(query...)}
}

// get calls read unless an earlier read failed.
func get[T any](p *params, read func() (T, error)) (v T) {
	if p.err == nil {
		v, p.err = read()
	}
	return v
}

// do is get for what returns only an error.
func (p *params) do(f func() error) {
	if p.err == nil {
		p.err = f()
	}
}

// refuse records an invalid argument.
func (p *params) refuse(field, format string, args ...any) {
	if p.err == nil {
		p.err = bad(field, format, args...)
	}
}

// queue returns the queue in the path.
func (p *params) queue() string { return get(p, p.q.queue) }

// pathID returns an id in the path.
func (p *params) pathID(name string) event.ID {
	return get(p, func() (event.ID, error) { return ulid(name, p.q.PathValue(name)) })
}

// id returns an id in the query, zero where it is absent.
func (p *params) id(name string) (id event.ID) {
	if !p.q.query.Has(name) {
		return id
	}
	return get(p, func() (event.ID, error) { return ulid(name, p.q.query.Get(name)) })
}

// text returns text in the query of at most limit bytes, nil where it is absent.
func (p *params) text(name string, limit int) *string {
	if !p.q.query.Has(name) {
		return nil
	}
	v := p.q.query.Get(name)
	if !utf8.ValidString(v) {
		p.refuse(name, "%s must be UTF-8", name)
	}
	p.do(func() error { return within(name, v, limit) })
	return &v
}

// choice returns a parameter that has one of these values, "" where it is absent.
func (p *params) choice(name string, values ...string) string {
	v := p.q.query.Get(name)
	if p.q.query.Has(name) && !slices.Contains(values, v) {
		last := len(values) - 1
		p.refuse(name, "%s must be %s or %s, not %s", name, strings.Join(values[:last], ", "), values[last], echo(v))
	}
	return v
}

func (p *params) number(name string, def, lo, hi int64) int64 {
	return get(p, func() (int64, error) { return p.q.number(name, def, lo, hi) })
}

func (p *params) limit(def, most int64) int { return int(p.number("limit", def, 1, most)) }

func (p *params) flag(name string) bool {
	return get(p, func() (bool, error) { return p.q.flag(name) })
}

// instant returns an instant in the past, now where the parameter is absent.
func (p *params) instant(name string) event.Instant {
	if !p.q.query.Has(name) {
		return event.Instant{Kind: event.InstantNow}
	}
	return get(p, func() (event.Instant, error) { return p.q.instant(name, p.q.query.Get(name)) })
}

// body decodes the body.
func (p *params) body(v any) {
	p.do(func() error { return p.q.decode(v, false, false) })
}

// optionalBody decodes the body if there is one.
func (p *params) optionalBody(v any) {
	p.do(func() error { return p.q.decode(v, false, true) })
}

// noBody accepts no body, or {}.
func (p *params) noBody() { p.optionalBody(&struct{}{}) }

// fresh waits until a read is linearizable, unless the request accepts stale ones.
func (p *params) fresh() { p.do(p.q.fresh) }

// barrier waits until this node has applied everything that was committed before.
func (p *params) barrier() {
	p.do(func() error { return p.q.s.barrier(p.q.Context()) })
}

// state returns the state to read from: the past one of at=, else the live one.
func (p *params) state() (st State) {
	p.do(func() (err error) {
		st, err = p.q.state()
		return err
	})
	return st
}

// firstN returns the first n values that keep accepts, and whether there are more.
func firstN[T any](list []T, n int, keep func(*T) bool) (out []T, more bool) {
	for i := range list {
		if !keep(&list[i]) {
			continue
		}
		if len(out) == n {
			return out, true
		}
		out = append(out, list[i])
	}
	return out, false
}

// proposeFresh proposes the command that build returns, nil for none. Where a queue's policy
// changed since build read it, it builds again. field and what name the policy in the error. Where
// build refuses a repeated request, the result is the first one.
func (q *request) proposeFresh(field, what string, build func() (*event.Command, error)) (res event.Result, err error) {
	for range maxStale {
		c, err := build()
		if err != nil {
			return q.orFirst(err)
		}
		if c == nil {
			return res, nil
		}
		if res, err = q.propose(c); !isStale(err) {
			return res, err
		}
		q.unhurried()
		if err := q.s.barrier(q.Context()); err != nil {
			return res, err
		}
	}
	return res, event.Problemf(event.CodeConflict, field, "%s changed concurrently; retry", what)
}
