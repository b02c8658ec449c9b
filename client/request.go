package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// maxAnswer limits how much of one answer is read: 1000 payloads of 1 MiB in base64,
// and something for the rest.
const maxAnswer = 2 << 30

// retryAfterMost limits the wait that a server's Retry-After asks for.
const retryAfterMost = 30 * time.Second

// CallOption changes one call.
type CallOption func(*call)

// WithIdempotencyKey names a write, so that a program that died in the middle can
// repeat it. Without it the client makes one up for each call.
func WithIdempotencyKey(key string) CallOption { return func(c *call) { c.key = key } }

// At reads the state at an instant in the past: an RFC 3339 time, an event's id, index:N, a
// duration before now such as 15m, or start. "" is the present.
func At(instant string) CallOption {
	return func(c *call) {
		if instant != "" {
			c.query.Set("at", instant)
		}
	}
}

// Reason says why an operator pauses, resumes, purges, deletes, replays or resurrects: it is in the
// event. "" is none.
func Reason(text string) CallOption {
	return func(c *call) {
		if text != "" {
			c.query.Set("reason", text)
		}
	}
}

// MaxPayload leaves larger payloads out of a list of messages or of dead messages.
func MaxPayload(bytes int64) CallOption {
	return func(c *call) { c.query.Set("max_payload", strconv.FormatInt(bytes, 10)) }
}

// Stale lets a read be answered from the node's own state, without asking the
// cluster whether it is the newest.
func Stale() CallOption { return func(c *call) { c.query.Set("consistency", "stale") } }

// call is one request and how it may be repeated.
type call struct {
	method, path string
	query        url.Values
	body         any
	key          string
	packed       bool          // its bodies are MessagePack
	spread       bool          // begins at any endpoint
	several      bool          // a shared request: if the queue is full a part may fit
	lease        bool          // has no key; repeated only if surely not applied
	settle       bool          // needs no key: a repeated settle gets the first answer
	patience     time.Duration // how long the call itself asks the server to wait

	// linger is how long a request outlives the call's context: its answer may be on its way.
	linger time.Duration

	// unknown is set by send: a try may have been committed. Then a later one that surely
	// was not says nothing about it: the outcome stays unknown.
	unknown bool
}

// write reports whether a try without an answer may have been committed. A lease may,
// too, but it only runs out.
func (q *call) write() bool { return q.method != get && !q.lease }

// newCall returns a call with query parameters: pairs of a name and a value, of
// which "", 0, false and nil are left out.
func newCall(method, path string, body any, params ...any) *call {
	q := &call{method: method, path: path, body: body, query: url.Values{}}
	for i := 0; i < len(params); i += 2 {
		name := params[i].(string)
		switch v := params[i+1].(type) {
		case string:
			if v != "" {
				q.query.Set(name, v)
			}
		case *string:
			if v != nil {
				q.query.Set(name, *v)
			}
		case int:
			if v > 0 {
				q.query.Set(name, strconv.Itoa(v))
			}
		case bool:
			if v {
				q.query.Set(name, "true")
			}
		}
	}
	return q
}

// newPacked returns a POST whose bodies are MessagePack: produce, lease and settle calls.
func newPacked(path string, body any) *call {
	q := newCall(post, path, body)
	q.packed = true
	return q
}

// do sends a call and returns its answer, which is not nil even with an error.
func do[T any](ctx context.Context, c *Client, q *call, opts []CallOption) (*T, error) {
	out := new(T)
	_, err := c.send(ctx, q, out, opts)
	return out, err
}

// doCreate is do for a call that reports by its status whether it created something.
func doCreate[T any](ctx context.Context, c *Client, q *call, opts []CallOption) (*T, bool, error) {
	out := new(T)
	status, err := c.send(ctx, q, out, opts)
	return out, status == http.StatusCreated, err
}

// run sends a call whose answer has nothing in it.
func (c *Client) run(ctx context.Context, q *call, opts []CallOption) error {
	_, err := c.send(ctx, q, nil, opts)
	return err
}

// send executes a call, repeating it as c.retry allows, and returns the status.
func (c *Client) send(ctx context.Context, q *call, answer any, opts []CallOption) (int, error) {
	for _, o := range opts {
		o(q)
	}
	if q.write() && q.key == "" && !q.settle {
		q.key = rand.Text()
	}
	var body []byte
	if q.body != nil {
		marshal := wire.Marshal
		if q.packed {
			marshal = wire.MarshalMsgpack
		}
		var err error
		if body, err = marshal(q.body); err != nil {
			return 0, &encodeError{fmt.Errorf("%s %s: %w", q.method, q.path, err)}
		}
	}
	at := c.at.Load()
	if q.spread || c.spread {
		at = c.turn()
	}
	asked := 0 // endpoints in this attempt
	for attempt := 1; ; {
		t := c.once(ctx, at, q, body, answer)
		if t.err == nil {
			return t.status, nil
		}
		again, leave := t.judge(q)
		if leave && ctx.Err() == nil {
			at = c.leave(at)
			if asked++; again && asked < len(c.endpoints) {
				continue
			}
		}
		if !again || attempt >= c.retry.Attempts || !c.pause(ctx, attempt, t.wait) {
			if q.unknown {
				t.err = unknown(t.err)
			}
			return t.status, t.err
		}
		attempt, asked = attempt+1, 0
	}
}

// try is the result of one request.
type try struct {
	status int
	wait   time.Duration // before the next one, as the server asked; 0: it did not
	err    error
	// unsent: it never had a connection, so that no server accepted it, or an untrusted one
	// (TLS). A dial error after a connection was made is different: net/http repeats a
	// request with an Idempotency-Key if the connection breaks, and then reports only the
	// failure of the second one.
	unsent bool
}

// judge reports whether a call may be repeated after a failed try, and whether the
// endpoint should be left because it does not work. It notes what is unknown.
func (t *try) judge(q *call) (again, leave bool) {
	var answered *Error
	if !errors.As(t.err, &answered) {
		q.unknown = q.unknown || q.write() && !t.unsent
		return !q.lease || t.unsent, true
	}
	p := &answered.Problem
	leave = t.status == http.StatusServiceUnavailable
	again = (leave || t.status == http.StatusTooManyRequests) && p.Retryable
	switch {
	case p.Outcome == wire.Unknown && t.status >= http.StatusInternalServerError:
		again, leave = q.write(), leave || q.write()
	case q.several && !q.unknown && errors.Is(answered, ErrQueueFull):
		again = false
	}
	q.unknown = q.unknown || p.Outcome == wire.Unknown && q.write()
	return again, leave
}

// pause waits before the next attempt, as long as the server asked or with a growing
// backoff. It returns false if ctx ends first.
func (c *Client) pause(ctx context.Context, attempt int, asked time.Duration) bool {
	wait := c.backoff(attempt)
	if asked > 0 {
		// Clients that were turned away together must not come back together.
		wait = min(asked, retryAfterMost)
		wait += time.Duration(mathrand.Int64N(int64(wait)/4 + 1))
	}
	select {
	case <-ctx.Done():
		return false
	case <-c.sleep(wait):
		return ctx.Err() == nil
	}
}

// backoff is exponential with jitter.
func (c *Client) backoff(attempt int) time.Duration {
	d := max(c.retry.Min, time.Millisecond) << min(attempt-1, 20)
	if d > c.retry.Max && c.retry.Max > 0 {
		d = c.retry.Max
	}
	return d/2 + time.Duration(mathrand.Int64N(int64(d)/2+1))
}

// once sends the request one time, to one endpoint.
func (c *Client) once(ctx context.Context, at uint32, q *call, body []byte, answer any) (t try) {
	to := c.endpoints[at]
	to.busy.Add(1)
	defer to.busy.Add(-1)
	if q.linger > 0 {
		var cancel context.CancelFunc
		ctx, cancel = outlive(ctx, q.linger)
		defer cancel()
	}
	if c.try > 0 && !q.query.Has("at") { // rebuilding a past state can take long
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.try+q.patience,
			fmt.Errorf("%s does not answer", to.url.Host))
		defer cancel()
	}
	var sent atomic.Bool
	req, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	}), to, q, body)
	if err != nil {
		return try{err: err}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return try{err: err, unsent: !sent.Load()}
	}
	defer resp.Body.Close()
	if resp.Close {
		c.leave(at) // it closes its connections: it is about to end
	}
	t.status = resp.StatusCode
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		t.err = fmt.Errorf("%s %s: read the answer: %w", q.method, q.path, err)
		return t
	case resp.StatusCode >= 300:
		e := problem(resp, b)
		t.wait, t.err = retryAfter(resp, &e.Problem), e
		return t
	case !resp.Close:
		to.until.Store(0)
	}
	c.noteLeader(at, resp.Header)
	if answer != nil {
		unmarshal := wire.Unmarshal
		if resp.Header.Get("Content-Type") == wire.MediaMsgpack {
			unmarshal = wire.UnmarshalMsgpack
		}
		if err := unmarshal(b, answer); err != nil {
			t.err = wrongAnswer("%v", err)
		}
	}
	return t
}

// outlive returns a context that ends d after ctx does.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

func (c *Client) request(ctx context.Context, to *endpoint, q *call,
	body []byte) (*http.Request, error) {
	u := to.url.String() + q.path
	if len(q.query) > 0 {
		u += "?" + q.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, q.method, u, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	media, accept := "application/json", "application/json"
	if q.packed {
		media, accept = wire.MediaMsgpack, wire.AcceptMsgpack
	}
	if c.carries != nil {
		headers := map[string]string{}
		c.carries.Inject(ctx, headers)
		for name, v := range headers {
			req.Header.Set(name, v)
		}
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", c.agent)
	if body != nil {
		req.Header.Set("Content-Type", media)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if q.key != "" && !q.lease {
		req.Header.Set("Idempotency-Key", q.key)
	}
	return req, nil
}

// Raw sends a request once, as it is and without the token, to the node that the next
// call goes to. It returns the answer whatever its status is, and its body.
func (c *Client) Raw(ctx context.Context, method, path string, header http.Header,
	body []byte) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.Addr()+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(req.Header, header)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp, b, err
}

// problem reads an error answer; one that is not problem+json (a proxy's page) becomes one.
func problem(resp *http.Response, b []byte) *Error {
	e := &Error{RequestID: resp.Header.Get("X-Request-Id")}
	if wire.Unmarshal(b, &e.Problem) != nil || e.Problem.Code == "" {
		e.Problem = Problem{
			Title:  http.StatusText(resp.StatusCode),
			Code:   "http_" + strconv.Itoa(resp.StatusCode),
			Detail: fmt.Sprintf("the server answered %s", resp.Status),
			Retryable: resp.StatusCode == http.StatusTooManyRequests ||
				resp.StatusCode == http.StatusServiceUnavailable,
			Outcome: wire.Unknown,
		}
		if bytes.Contains(b, []byte("HTTP request to an HTTPS server")) { // net/http
			e.Problem.Outcome = wire.NotApplied
			e.Problem.Detail = "the server uses TLS: its address begins with https://"
		}
	}
	e.Problem.Status = resp.StatusCode
	return e
}

// retryAfter returns how long the server asks to wait, 0 if it does not say.
func retryAfter(resp *http.Response, p *Problem) time.Duration {
	if p.RetryAfterMS > 0 {
		return time.Duration(p.RetryAfterMS) * time.Millisecond
	}
	v := resp.Header.Get("Retry-After")
	if s, err := strconv.Atoi(v); err == nil && s > 0 {
		return time.Duration(min(s, 3600)) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil { // a proxy's
		return max(time.Until(t), 0)
	}
	return 0
}
