package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

// EventQuery selects events. From and To are instants, both inclusive; After is
// an event's id, exclusive.
type EventQuery struct {
	After, From, To string
	Queue           string
	Types           []string
	MessageID       string
	Actor           string
	Limit           int // of one page

	// Labels of the message that an event is about, and who has or had its lease.
	Key, Kind, CorrelationID string
	Worker                   string

	// OnHistoryBegins, if set, is called by AllEvents, once, with where history begins, if events
	// that it would yield are older, or may not be found because their labels are.
	OnHistoryBegins func(Time)
}

func (q *EventQuery) call() *call {
	return newCall(get, "/v1/events", nil, "after", q.After, "from", q.From, "to", q.To,
		"queue", q.Queue, "type", strings.Join(q.Types, ","), "message_id", q.MessageID,
		"actor", q.Actor, "key", q.Key, "kind", q.Kind, "correlation_id", q.CorrelationID,
		"worker", q.Worker, "limit", q.Limit)
}

// Events returns one page of events. A client that polls with After set to the last
// answer's NextCursor misses nothing and sees nothing twice.
func (c *Client) Events(ctx context.Context, q EventQuery, opts ...CallOption) (*EventList, error) {
	return do[EventList](ctx, c, q.call(), opts)
}

// AllEvents iterates over all events that q selects, to the newest there is.
func (c *Client) AllEvents(ctx context.Context, q EventQuery) iter.Seq2[Event, error] {
	return pages(func(cursor string) ([]Event, string, error) {
		if cursor != "" {
			q.After, q.From = cursor, ""
		}
		page, err := c.Events(ctx, q)
		if page.HistoryBeginsAt != nil && q.OnHistoryBegins != nil {
			q.OnHistoryBegins(*page.HistoryBeginsAt)
			q.OnHistoryBegins = nil
		}
		if len(page.Events) == 0 && !page.Partial || page.NextCursor == q.After {
			page.NextCursor = "" // the newest
		}
		return page.Events, page.NextCursor, err
	})
}

// Follow yields events as they commit, from q.After or q.From, else from now. It
// reconnects when the connection breaks, and misses nothing. It ends with ctx, when the
// caller stops, or with an error that a retry does not resolve.
func (c *Client) Follow(ctx context.Context, q EventQuery) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if q.After == "" && q.From == "" {
			// The starting place must be known before the first connection, or events
			// that commit between two connections would be missed.
			probe := q
			probe.From, probe.Limit = "now", 1
			page, err := c.Events(ctx, probe)
			if err != nil {
				yield(Event{}, err)
				return
			}
			if q.After = page.NextCursor; q.After == "" {
				q.From = "start" // an empty log: all is new
			}
		}
		for failures := 0; ctx.Err() == nil; {
			stopped := false
			err := c.stream(ctx, q, func(e Event) bool {
				failures, q.After, q.From = 0, e.EventID, ""
				stopped = !yield(e, nil)
				return !stopped
			})
			if stopped {
				return
			}
			failures++
			var e *Error
			final := errors.As(err, &e) && !e.Problem.Retryable
			if final || err != nil && failures >= c.retry.Attempts && ctx.Err() == nil {
				yield(Event{}, err)
				return
			}
			c.pause(ctx, failures, 0)
		}
	}
}

// stream reads the events of one connection, until the end or until yield stops it.
func (c *Client) stream(ctx context.Context, events EventQuery, yield func(Event) bool) error {
	events.Limit = 0
	q := events.call()
	q.query.Set("follow", "true")
	at := c.at.Load()
	req, err := c.request(ctx, c.endpoints[at], q, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := c.http.Do(req)
	if err != nil {
		c.leave(at)
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		c.leave(at)
	}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return problem(resp, b)
	}
	for dec := jsontext.NewDecoder(resp.Body); ; {
		line, err := dec.ReadValue()
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) { // also of an event cut short
			return nil
		}
		if err != nil {
			return err
		}
		var e Event
		if err := wire.Unmarshal(line, &e); err != nil {
			return err
		}
		if !yield(e) {
			return nil
		}
	}
}
