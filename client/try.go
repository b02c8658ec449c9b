package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// once sends the request one time, to one endpoint. wait is what the server
// asked for.
func (c *Client) once(ctx context.Context, at uint32, q *call, body payload, answer any) (status int, wait time.Duration, err error) {
	to := c.endpoints[at]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var hangs *time.Timer
	if c.try > 0 && !q.query.Has("at") { // to rebuild a past can take long
		hangs = time.AfterFunc(c.try+q.patience, func() { cancel(fmt.Errorf("%s does not answer", to.url.Host)) })
		defer hangs.Stop()
	}
	var begun atomic.Bool
	req, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { begun.Store(true) },
	}), to.url, q, body)
	if err != nil {
		return 0, 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		if !begun.Load() {
			err = &unsentError{err}
		}
		return 0, 0, err
	}
	defer resp.Body.Close()
	if resp.Close {
		c.leave(at) // it lets its connections go: it is about to end
	}
	b, err := c.read(resp, hangs)
	if err != nil {
		return resp.StatusCode, 0, fmt.Errorf("%s %s: read the answer: %w", q.method, q.path, err)
	}
	if resp.StatusCode >= 300 {
		e := problem(resp, b)
		return resp.StatusCode, retryAfter(resp, &e.Problem), e
	}
	if !resp.Close {
		to.did()
	}
	c.heard(at, resp.Header)
	if answer != nil && len(b) > 0 {
		if err := wire.Unmarshal(b, answer); err != nil {
			return resp.StatusCode, 0, wrongAnswer("%v", err)
		}
	}
	return resp.StatusCode, 0, nil
}

// read reads an answer. A timer of the try starts anew with all that comes.
func (c *Client) read(resp *http.Response, hangs *time.Timer) ([]byte, error) {
	var r io.Reader = resp.Body
	if hangs != nil {
		r = patientReader{r, func() { hangs.Reset(c.try) }}
	}
	if n := resp.ContentLength; n >= 0 && n <= maxAnswer {
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return b, err
	}
	return io.ReadAll(io.LimitReader(r, maxAnswer))
}

// patientReader tells that there is still something coming.
type patientReader struct {
	io.Reader
	alive func()
}

func (r patientReader) Read(b []byte) (int, error) {
	r.alive()
	return r.Reader.Read(b)
}

func (c *Client) request(ctx context.Context, to *url.URL, q *call, body payload) (*http.Request, error) {
	u := *to
	u.RawPath = u.EscapedPath() + q.path
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawQuery = path, q.query.Encode()
	h := make(http.Header, 6)
	req := (&http.Request{Method: q.method, URL: &u, Host: u.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	h["Accept"] = typeJSON
	if body != nil {
		req.ContentLength = int64(len(body))
		// net/http repeats by itself what it did not get to write on a
		// connection that had been idle for too long.
		req.GetBody = body.open
		req.Body, _ = body.open()
		h["Content-Type"] = typeJSON
	}
	h["User-Agent"] = []string{c.agent}
	if c.token != "" {
		h["Authorization"] = []string{"Bearer " + c.token}
	}
	if q.key != "" && !q.lease {
		h["Idempotency-Key"] = []string{q.key}
	}
	return req, nil
}

// typeJSON is shared by requests, which do not change it.
var typeJSON = []string{"application/json"}

// problem reads an error answer; what is not problem+json (a proxy's page)
// becomes one.
func problem(resp *http.Response, b []byte) *Error {
	e := &Error{RequestID: resp.Header.Get("X-Request-Id")}
	if wire.Unmarshal(b, &e.Problem) != nil || e.Problem.Code == "" {
		e.Problem = wire.Problem{
			Title: http.StatusText(resp.StatusCode), Code: "http_" + strconv.Itoa(resp.StatusCode),
			Detail:    fmt.Sprintf("the server answered %s", resp.Status),
			Retryable: resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable,
			Outcome:   wire.Unknown,
		}
	}
	e.Problem.Status = resp.StatusCode
	return e
}

// retryAfter is how long the server asks to wait, 0 where it does not say.
func retryAfter(resp *http.Response, p *wire.Problem) time.Duration {
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
