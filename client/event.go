package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
)

// EventQuery selects events. From and To are instants, both inclusive; After is
// an event's id, exclusive.
type EventQuery struct {
	After, From, To string
	Queue           string
	Type            string
	MessageID       string
	Limit           int // of one page
}

func (q *EventQuery) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{
		"after": q.After, "from": q.From, "to": q.To,
		"queue": q.Queue, "type": q.Type, "message_id": q.MessageID,
	} {
		if s != "" {
			v.Set(name, s)
		}
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// Events returns one page of events. A client that polls with After set to the
// last answer's NextCursor misses nothing and sees nothing twice.
func (c *Client) Events(ctx context.Context, q EventQuery, opts ...CallOption) (*wire.EventList, error) {
	out := &wire.EventList{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: "/v1/events", query: q.values()}, out, opts)
	return out, err
}

// AllEvents pages through all events that q selects, to the newest there is.
func (c *Client) AllEvents(ctx context.Context, q EventQuery) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		for {
			page, err := c.Events(ctx, q)
			if err != nil {
				yield(wire.Event{}, err)
				return
			}
			for _, e := range page.Events {
				if !yield(e, nil) {
					return
				}
			}
			if len(page.Events) == 0 || page.NextCursor == "" || page.NextCursor == q.After {
				return
			}
			q.After, q.From = page.NextCursor, ""
		}
	}
}

// Follow yields events as they commit, from q.After or q.From, else from now.
// It connects anew where the connection breaks, and misses nothing by it. It
// ends with ctx, or where the caller stops, or with an error that repeating
// does not heal.
func (c *Client) Follow(ctx context.Context, q EventQuery) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		if q.After == "" && q.From == "" {
			// A place must be known before the first connection, or what
			// commits between two of them would be missed.
			probe := q
			probe.From, probe.Limit = "now", 1
			page, err := c.Events(ctx, probe)
			if err != nil {
				yield(wire.Event{}, err)
				return
			}
			q.After = page.NextCursor
			if q.After == "" {
				q.From = "start" // an empty log: all is new
			}
		}
		for failures := 0; ctx.Err() == nil; {
			stopped, n, err := c.stream(ctx, &q, yield)
			if stopped {
				return
			}
			var e *Error
			if errors.As(err, &e) && !e.Problem.Retryable {
				yield(wire.Event{}, err)
				return
			}
			if n > 0 {
				failures = 0
			}
			if failures++; failures >= c.retry.Attempts && err != nil {
				if ctx.Err() == nil {
					yield(wire.Event{}, err)
				}
				return
			}
			select {
			case <-ctx.Done():
			case <-c.sleep(c.backoff(failures)):
			}
		}
	}
}

// stream reads one connection's events and moves q.After along.
func (c *Client) stream(ctx context.Context, q *EventQuery, yield func(wire.Event, error) bool) (stopped bool, n int, err error) {
	v := q.values()
	v.Set("follow", "true")
	v.Del("limit")
	at := c.at.Load()
	req, err := c.request(ctx, c.endpoints[at].url, &call{method: http.MethodGet, path: "/v1/events", query: v}, nil)
	if err != nil {
		return false, 0, err
	}
	req.Header["Accept"] = []string{"application/x-ndjson"}
	resp, err := c.http.Do(req)
	if err != nil {
		c.leave(at)
		return false, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		c.leave(at)
	}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return false, 0, problem(resp, b)
	}
	r := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := r.ReadString('\n')
		if s := strings.TrimSpace(line); s != "" && err == nil {
			var e wire.Event
			if err := wire.Unmarshal([]byte(s), &e); err != nil {
				return false, n, err
			}
			n++
			q.After, q.From = e.EventID, ""
			if !yield(e, nil) {
				return true, n, nil
			}
		}
		if err == io.EOF {
			return false, n, nil
		}
		if err != nil {
			return false, n, err
		}
	}
}
