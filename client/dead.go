package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/qlogd/qlogd/api/wire"
)

// DeadQuery selects what died in a queue.
type DeadQuery struct {
	wire.DeadFilter
	State string // dead, or replayed; "" dead
	Limit int    // of one page; 0 the server's
	After string // NextCursor of the page before
}

func (q *DeadQuery) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{
		"reason": q.Reason, "error": q.Error, "from": q.From, "to": q.To, "fingerprint": q.Fingerprint, "state": q.State, "cursor": q.After,
	} {
		if s != "" {
			v.Set(name, s)
		}
	}
	for name, s := range map[string]*string{"key": q.Key, "kind": q.Kind} {
		if s != nil {
			v.Set(name, *s)
		}
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// Dead returns a page of what died in a queue.
func (c *Client) Dead(ctx context.Context, queue string, q DeadQuery, opts ...CallOption) (*wire.DeadList, error) {
	out := &wire.DeadList{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: queuePath(queue, "/dead"), query: q.values()}, out, opts)
	return out, err
}

// AllDead pages through what died in a queue.
func (c *Client) AllDead(ctx context.Context, queue string, q DeadQuery, opts ...CallOption) iter.Seq2[wire.Message, error] {
	return func(yield func(wire.Message, error) bool) {
		for {
			page, err := c.Dead(ctx, queue, q, opts...)
			if err != nil {
				yield(wire.Message{}, err)
				return
			}
			for _, m := range page.Dead {
				if !yield(m, nil) {
					return
				}
			}
			if q.After = page.NextCursor; q.After == "" {
				return
			}
		}
	}
}

// DeadMessage returns one of what died in a queue, by any id that it ever had.
func (c *Client) DeadMessage(ctx context.Context, queue, id string, opts ...CallOption) (*wire.Message, error) {
	out := &wire.Message{}
	return out, c.do(ctx, http.MethodGet, queuePath(queue, "/dead/"+url.PathEscape(id)), nil, out, opts...)
}

// DeadGroups returns what died in a queue by what went wrong, the largest group
// first.
func (c *Client) DeadGroups(ctx context.Context, queue string, q DeadQuery, opts ...CallOption) (*wire.DeadGroups, error) {
	out := &wire.DeadGroups{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: queuePath(queue, "/dead/groups"), query: q.values()}, out, opts)
	return out, err
}

// Replay moves dead messages back to work. Many are moved by a task: then task
// is set, and done is nil.
func (c *Client) Replay(ctx context.Context, queue string, r wire.ReplayRequest, opts ...CallOption) (done *wire.Replayed, task *wire.Task, err error) {
	done = &wire.Replayed{}
	if task, err = c.move(ctx, queuePath(queue, "/dead/replay"), r, done, opts); task != nil || err != nil {
		return nil, task, err
	}
	return done, nil, nil
}

// PurgeDead discards dead messages; see Replay.
func (c *Client) PurgeDead(ctx context.Context, queue string, r wire.PurgeRequest, opts ...CallOption) (done *wire.DeadPurged, task *wire.Task, err error) {
	done = &wire.DeadPurged{}
	if task, err = c.move(ctx, queuePath(queue, "/dead/purge"), r, done, opts); task != nil || err != nil {
		return nil, task, err
	}
	return done, nil, nil
}

// move sends what is done at once, and answered with done, or by a task.
func (c *Client) move(ctx context.Context, path string, r, done any, opts []CallOption) (*wire.Task, error) {
	var raw json.RawMessage
	status, err := c.send(ctx, &call{method: http.MethodPost, path: path, body: r, query: url.Values{}}, &raw, opts)
	if err != nil {
		return nil, err
	}
	var task *wire.Task
	if status == http.StatusAccepted {
		task = &wire.Task{}
		done = task
	}
	if err := wire.Unmarshal(raw, done); err != nil {
		return nil, wrongAnswer("%v", err)
	}
	return task, nil
}

// DeleteDead discards one.
func (c *Client) DeleteDead(ctx context.Context, queue, id string, opts ...CallOption) error {
	return c.do(ctx, http.MethodDelete, queuePath(queue, "/dead/"+url.PathEscape(id)), nil, nil, opts...)
}

// Resurrect enqueues a message again that was acked or discarded, while history
// keeps it.
func (c *Client) Resurrect(ctx context.Context, id string, r wire.ResurrectRequest, opts ...CallOption) (*wire.Resurrected, error) {
	out := &wire.Resurrected{}
	return out, c.do(ctx, http.MethodPost, "/v1/messages/"+url.PathEscape(id)+"/resurrect", r, out, opts...)
}

// Edits tells what replays and resurrections changed in a message.
func (c *Client) Edits(ctx context.Context, id string, opts ...CallOption) ([]wire.MessageEdit, error) {
	var out wire.Edits
	err := c.do(ctx, http.MethodGet, "/v1/messages/"+url.PathEscape(id)+"/edits", nil, &out, opts...)
	return out.Edits, err
}

// Import enqueues messages of another system: one whose source id is in the
// queue is ignored.
func (c *Client) Import(ctx context.Context, queue string, messages []wire.ImportMessage, opts ...CallOption) (*wire.ImportResponse, error) {
	out := &wire.ImportResponse{}
	return out, c.do(ctx, http.MethodPost, queuePath(queue, "/messages/import"), &wire.ImportRequest{Messages: messages}, out, opts...)
}
