package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// Tasks returns all tasks of a status, the newest first; "" is all there are.
func (c *Client) Tasks(ctx context.Context, status string, opts ...CallOption) ([]wire.Task, error) {
	var out []wire.Task
	for cursor := ""; ; {
		query := url.Values{}
		if status != "" {
			query.Set("status", status)
		}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page wire.TaskList
		if _, err := c.send(ctx, &call{method: http.MethodGet, path: "/v1/tasks", query: query}, &page, opts); err != nil {
			return nil, err
		}
		out = append(out, page.Tasks...)
		if cursor = page.NextCursor; cursor == "" {
			return out, nil
		}
	}
}

// Task returns a task as it stands.
func (c *Client) Task(ctx context.Context, id string, opts ...CallOption) (*wire.Task, error) {
	return c.awaitTask(ctx, id, 0, opts)
}

// taskWait is how long one call waits for a task's end.
const taskWait = 20 * time.Second

// WaitTask returns a task once it does not run any more.
func (c *Client) WaitTask(ctx context.Context, id string, opts ...CallOption) (*wire.Task, error) {
	for {
		t, err := c.awaitTask(ctx, id, taskWait, opts)
		if err != nil || t.Status != wire.TaskRunning {
			return t, err
		}
	}
}

// AwaitTask returns a task once it does not run any more, or after wait (at most
// a minute).
func (c *Client) AwaitTask(ctx context.Context, id string, wait time.Duration, opts ...CallOption) (*wire.Task, error) {
	return c.awaitTask(ctx, id, wait, opts)
}

func (c *Client) awaitTask(ctx context.Context, id string, wait time.Duration, opts []CallOption) (*wire.Task, error) {
	query := url.Values{}
	if ms := wait.Milliseconds(); ms > 0 {
		query.Set("wait_ms", strconv.FormatInt(ms, 10))
	}
	out := &wire.Task{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: taskPath(id, ""), query: query, patience: wait}, out, opts)
	return out, err
}

// CancelTask cancels a task. What it has done so far stays done.
func (c *Client) CancelTask(ctx context.Context, id string, opts ...CallOption) error {
	return c.do(ctx, http.MethodDelete, taskPath(id, ""), nil, nil, opts...)
}

// ResumeTask lets a cancelled task go on with what is left.
func (c *Client) ResumeTask(ctx context.Context, id string, opts ...CallOption) (*wire.Task, error) {
	out := &wire.Task{}
	return out, c.do(ctx, http.MethodPost, taskPath(id, "/resume"), nil, out, opts...)
}

func taskPath(id, rest string) string { return "/v1/tasks/" + url.PathEscape(id) + rest }
