package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

const (
	get    = http.MethodGet
	post   = http.MethodPost
	put    = http.MethodPut
	patch  = http.MethodPatch
	remove = http.MethodDelete
)

func queuePath(queue, rest string) string { return "/v1/queues/" + url.PathEscape(queue) + rest }
func messagePath(id, rest string) string  { return "/v1/messages/" + url.PathEscape(id) + rest }
func taskPath(id, rest string) string     { return "/v1/tasks/" + url.PathEscape(id) + rest }
func webhookPath(name string) string      { return "/v1/webhooks/" + url.PathEscape(name) }

// PutQueue creates a queue, or replaces the policy of an existing one; created says
// which. The zero update is the default policy.
func (c *Client) PutQueue(ctx context.Context, name string, policy PolicyUpdate,
	opts ...CallOption) (q *QueueInfo, created bool, err error) {
	return doCreate[QueueInfo](ctx, c, newCall(put, queuePath(name, ""), policy), opts)
}

// UpdateQueue changes the fields of a queue's policy that are set.
func (c *Client) UpdateQueue(ctx context.Context, name string, policy PolicyUpdate,
	opts ...CallOption) (*QueueInfo, error) {
	return do[QueueInfo](ctx, c, newCall(patch, queuePath(name, ""), policy), opts)
}

// Queue returns a queue with its policy and counts.
func (c *Client) Queue(ctx context.Context, name string, opts ...CallOption) (*QueueInfo, error) {
	return do[QueueInfo](ctx, c, newCall(get, queuePath(name, ""), nil), opts)
}

// QueueStats returns the statistics that the asked node keeps of a queue, going
// back the given number of minutes; 0 is the server's default.
func (c *Client) QueueStats(ctx context.Context, name string, minutes int,
	opts ...CallOption) (*QueueStats, error) {
	q := newCall(get, queuePath(name, "/stats"), nil, "minutes", minutes)
	return do[QueueStats](ctx, c, q, opts)
}

// Queues returns all queues of a namespace; "" means of all namespaces.
func (c *Client) Queues(ctx context.Context, namespace string,
	opts ...CallOption) ([]QueueInfo, error) {
	return collect(pages(func(cursor string) ([]QueueInfo, string, error) {
		page, err := c.QueuePage(ctx, QueueQuery{Namespace: namespace, After: cursor}, opts...)
		return page.Queues, page.NextCursor, err
	}))
}

// QueueQuery selects queues.
type QueueQuery struct {
	Namespace string // "": all
	Name      string // part of the name, in any case
	Dead      bool   // only queues in which messages died that are still dead
	Limit     int    // per page; 0 is the server's default
	After     string // NextCursor of the previous page
}

// QueuePage returns a page of queues, by name.
func (c *Client) QueuePage(ctx context.Context, s QueueQuery,
	opts ...CallOption) (*QueueList, error) {
	q := newCall(get, "/v1/queues", nil, "namespace", s.Namespace, "name", s.Name,
		"dead", s.Dead, "limit", s.Limit, "cursor", s.After)
	return do[QueueList](ctx, c, q, opts)
}

// DeleteQueue deletes a queue; with force, including its messages.
func (c *Client) DeleteQueue(ctx context.Context, name string, force bool,
	opts ...CallOption) error {
	return c.run(ctx, newCall(remove, queuePath(name, ""), nil, "force", force), opts)
}

// PauseQueue stops leases from a queue; messages can still be produced.
func (c *Client) PauseQueue(ctx context.Context, name string, opts ...CallOption) error {
	return c.run(ctx, newCall(post, queuePath(name, "/pause"), nil), opts)
}

// ResumeQueue undoes PauseQueue.
func (c *Client) ResumeQueue(ctx context.Context, name string, opts ...CallOption) error {
	return c.run(ctx, newCall(post, queuePath(name, "/resume"), nil), opts)
}

// PauseKey stops leases of one key of an unordered or per_key queue, which may not have it yet.
func (c *Client) PauseKey(ctx context.Context, queue, key string, opts ...CallOption) error {
	body := wire.PauseRequest{Key: wire.Some(key)}
	return c.run(ctx, newCall(post, queuePath(queue, "/pause"), body), opts)
}

// ResumeKey undoes PauseKey.
func (c *Client) ResumeKey(ctx context.Context, queue, key string, opts ...CallOption) error {
	body := wire.PauseRequest{Key: wire.Some(key)}
	return c.run(ctx, newCall(post, queuePath(queue, "/resume"), body), opts)
}

// PurgeQueue discards all messages that are not leased and returns their number.
func (c *Client) PurgeQueue(ctx context.Context, name string, opts ...CallOption) (int64, error) {
	out, err := do[wire.Purged](ctx, c, newCall(post, queuePath(name, "/purge"), nil), opts)
	return out.Purged, err
}

// Explain says why a message is or is not delivered: the named one or, with
// messageID "", the first that waits under key, or in the queue if key is nil.
func (c *Client) Explain(ctx context.Context, queue, messageID string, key *string,
	opts ...CallOption) (*Explanation, error) {
	q := newCall(get, queuePath(queue, "/explain"), nil, "message_id", messageID, "key", key)
	return do[Explanation](ctx, c, q, opts)
}

// MessageQuery selects messages of a queue.
type MessageQuery struct {
	State   string            // scheduled, ready, leased; "" for all
	Key     *string           // nil for all
	Kind    *string           // nil for all
	Headers map[string]string // values by name; nil for all
	Limit   int               // per page; 0 is the server's default
	After   string            // NextCursor of the previous page
}

// Messages returns a page of a queue's messages, without any effect on them. A page that the query
// filters may be empty before the end.
func (c *Client) Messages(ctx context.Context, queue string, m MessageQuery,
	opts ...CallOption) (*MessageList, error) {
	q := newCall(get, queuePath(queue, "/messages"), nil,
		"state", m.State, "key", m.Key, "kind", m.Kind, "limit", m.Limit, "cursor", m.After)
	for name, v := range m.Headers {
		q.query.Set("header."+name, v)
	}
	return do[MessageList](ctx, c, q, opts)
}

// AllMessages iterates over all messages that m selects.
func (c *Client) AllMessages(ctx context.Context, queue string, m MessageQuery,
	opts ...CallOption) iter.Seq2[MessageInfo, error] {
	return pages(func(cursor string) ([]MessageInfo, string, error) {
		m.After = cmp.Or(cursor, m.After)
		page, err := c.Messages(ctx, queue, m, opts...)
		return page.Messages, page.NextCursor, err
	})
}

// Message returns a message with its payload and history, wherever it is.
func (c *Client) Message(ctx context.Context, id string, opts ...CallOption) (*MessageInfo, error) {
	return do[MessageInfo](ctx, c, newCall(get, messagePath(id, ""), nil), opts)
}

// History returns every event of a message, oldest first, including those in
// dead-letter queues and of replays.
func (c *Client) History(ctx context.Context, id string, opts ...CallOption) ([]Event, error) {
	out, err := do[wire.History](ctx, c, newCall(get, messagePath(id, "/history"), nil), opts)
	return out.Events, err
}

// Reschedule gives a message that waits another time, another priority, or both. One that is leased
// is ErrConflict.
func (c *Client) Reschedule(ctx context.Context, id string, r Reschedule,
	opts ...CallOption) (*MessageInfo, error) {
	return do[MessageInfo](ctx, c, newCall(patch, messagePath(id, ""), r), opts)
}

// Lineage returns what a message came from and what came from it, at most 1000 messages.
func (c *Client) Lineage(ctx context.Context, id string, opts ...CallOption) (*Lineage, error) {
	return do[Lineage](ctx, c, newCall(get, messagePath(id, "/lineage"), nil), opts)
}

// DeleteMessage removes a message from its queue.
func (c *Client) DeleteMessage(ctx context.Context, id string, opts ...CallOption) error {
	return c.run(ctx, newCall(remove, messagePath(id, ""), nil), opts)
}

// Resurrect enqueues an acked or discarded message again, while history keeps it.
func (c *Client) Resurrect(ctx context.Context, id string, r ResurrectRequest,
	opts ...CallOption) (*Resurrected, error) {
	return do[Resurrected](ctx, c, newCall(post, messagePath(id, "/resurrect"), r), opts)
}

// Edits returns what replays and resurrections changed in a message.
func (c *Client) Edits(ctx context.Context, id string, opts ...CallOption) ([]MessageEdit, error) {
	out, err := do[wire.Edits](ctx, c, newCall(get, messagePath(id, "/edits"), nil), opts)
	return out.Edits, err
}

// Import enqueues messages of another system; one whose source id is already in the
// queue is ignored.
func (c *Client) Import(ctx context.Context, queue string, messages []ImportMessage,
	opts ...CallOption) (*ImportResponse, error) {
	messages = slices.Clone(messages)
	for i := range messages {
		if err := c.hook(ctx, queue, &messages[i].NewMessage); err != nil {
			return nil, err
		}
	}
	q := newCall(post, queuePath(queue, "/messages/import"), wire.ImportRequest{Messages: messages})
	return do[ImportResponse](ctx, c, q, opts)
}

// EraseMessage starts erasing the user data of a message, named by any id that it has or had, on
// all nodes and in the archive; a live one is discarded. The reason is kept. The task reports on
// which nodes the erasure is complete. A dry run only returns what would be erased, and no task.
func (c *Client) EraseMessage(ctx context.Context, id string, r EraseRequest,
	opts ...CallOption) (would *Erasable, task *Task, err error) {
	return doOrTask[Erasable](ctx, c, newCall(post, messagePath(id, "/erase"), r), opts)
}

// EraseKey is EraseMessage for all messages of a key that were in a queue. In a dry run
// the node reads its whole log.
func (c *Client) EraseKey(ctx context.Context, queue string, r EraseKeyRequest,
	opts ...CallOption) (would *Erasable, task *Task, err error) {
	return doOrTask[Erasable](ctx, c, newCall(post, queuePath(queue, "/erase"), r), opts)
}

// DeadQuery selects dead messages of a queue.
type DeadQuery struct {
	DeadFilter
	State string // dead, or replayed; "" is dead
	Limit int    // per page; 0 is the server's default
	After string // NextCursor of the previous page

	// Of DeadGroups:
	Step time.Duration // 0 counts no steps
	Most int           // reads at most so many dead messages, and then sets NextCursor; 0: all
}

func (d *DeadQuery) call(path string) *call {
	return newCall(get, path, nil, "reason", d.Reason, "error", d.Error, "from", d.From, "to", d.To,
		"fingerprint", d.Fingerprint, "key", d.Key, "kind", d.Kind,
		"state", d.State, "limit", d.Limit, "most", d.Most, "cursor", d.After)
}

// Dead returns a page of a queue's dead messages.
func (c *Client) Dead(ctx context.Context, queue string, d DeadQuery,
	opts ...CallOption) (*DeadList, error) {
	return do[DeadList](ctx, c, d.call(queuePath(queue, "/dead")), opts)
}

// AllDead iterates over all dead messages that d selects.
func (c *Client) AllDead(ctx context.Context, queue string, d DeadQuery,
	opts ...CallOption) iter.Seq2[MessageInfo, error] {
	return pages(func(cursor string) ([]MessageInfo, string, error) {
		d.After = cmp.Or(cursor, d.After)
		page, err := c.Dead(ctx, queue, d, opts...)
		return page.Dead, page.NextCursor, err
	})
}

// DeadMessage returns a dead message of a queue, named by any id that it ever had.
func (c *Client) DeadMessage(ctx context.Context, queue, id string,
	opts ...CallOption) (*MessageInfo, error) {
	q := newCall(get, queuePath(queue, "/dead/"+url.PathEscape(id)), nil)
	return do[MessageInfo](ctx, c, q, opts)
}

// DeadGroups returns a queue's dead messages grouped by cause, the largest group first; with
// d.Step also how many died in each step of time.
func (c *Client) DeadGroups(ctx context.Context, queue string, d DeadQuery,
	opts ...CallOption) (*DeadGroups, error) {
	q := d.call(queuePath(queue, "/dead/groups"))
	if d.Step > 0 {
		q.query.Set("step", d.Step.String())
	}
	return do[DeadGroups](ctx, c, q, opts)
}

// Replay moves dead messages back to work. Many are moved by a task: then task is
// set, and done is nil.
func (c *Client) Replay(ctx context.Context, queue string, r ReplayRequest,
	opts ...CallOption) (done *DeadMoved, task *Task, err error) {
	q := newCall(post, queuePath(queue, "/dead/replay"), r)
	return doOrTask[DeadMoved](ctx, c, q, opts)
}

// PurgeDead discards dead messages; for task see Replay.
func (c *Client) PurgeDead(ctx context.Context, queue string, r PurgeRequest,
	opts ...CallOption) (done *DeadMoved, task *Task, err error) {
	q := newCall(post, queuePath(queue, "/dead/purge"), r)
	return doOrTask[DeadMoved](ctx, c, q, opts)
}

// Undo brings back what was acked, purged, deleted or expired; for task see Replay. The task's
// Result is what is answered otherwise.
func (c *Client) Undo(ctx context.Context, queue string, r UndoRequest,
	opts ...CallOption) (done *Undone, task *Task, err error) {
	return doOrTask[Undone](ctx, c, newCall(post, queuePath(queue, "/resurrect"), r), opts)
}

// doOrTask sends a call that is answered with a T, or with the task that carries it out.
func doOrTask[T any](ctx context.Context, c *Client, q *call,
	opts []CallOption) (*T, *Task, error) {
	var raw json.RawMessage
	status, err := c.send(ctx, q, &raw, opts)
	if err != nil {
		return nil, nil, err
	}
	done, task := new(T), new(Task)
	if status == http.StatusAccepted {
		done, err = nil, wire.Unmarshal(raw, task)
	} else {
		task, err = nil, wire.Unmarshal(raw, done)
	}
	if err != nil {
		return nil, nil, wrongAnswer("%v", err)
	}
	return done, task, nil
}

// Tasks returns all tasks with a status, newest first; "" is any status.
func (c *Client) Tasks(ctx context.Context, status string, opts ...CallOption) ([]Task, error) {
	return collect(pages(func(cursor string) ([]Task, string, error) {
		page, err := c.TaskPage(ctx, status, cursor, 0, opts...)
		return page.Tasks, page.NextCursor, err
	}))
}

// TaskPage is Tasks in pages of at most limit, 0 for the server's default; after is the last page's
// NextCursor.
func (c *Client) TaskPage(ctx context.Context, status, after string, limit int,
	opts ...CallOption) (*TaskList, error) {
	q := newCall(get, "/v1/tasks", nil, "status", status, "cursor", after, "limit", limit)
	return do[TaskList](ctx, c, q, opts)
}

// Attention returns what may need an operator, the worst first.
func (c *Client) Attention(ctx context.Context, opts ...CallOption) ([]AttentionItem, error) {
	out, err := do[wire.Attention](ctx, c, newCall(get, "/v1/attention", nil), opts)
	return out.Items, err
}

// Workers returns who has leased from a queue within the last hour, from all of them if queue is
// "".
func (c *Client) Workers(ctx context.Context, queue string,
	opts ...CallOption) ([]WorkerInfo, error) {
	return collect(pages(func(cursor string) ([]WorkerInfo, string, error) {
		q := newCall(get, "/v1/workers", nil, "queue", queue, "cursor", cursor)
		page, err := do[wire.WorkerList](ctx, c, q, opts)
		return page.Workers, page.NextCursor, err
	}))
}

// Task returns the current state of a task.
func (c *Client) Task(ctx context.Context, id string, opts ...CallOption) (*Task, error) {
	return c.AwaitTask(ctx, id, 0, opts...)
}

// WaitTask returns a task once it no longer runs.
func (c *Client) WaitTask(ctx context.Context, id string, opts ...CallOption) (*Task, error) {
	for {
		t, err := c.AwaitTask(ctx, id, 20*time.Second, opts...)
		if err != nil || t.Status != TaskRunning {
			return t, err
		}
	}
}

// AwaitTask returns a task once it no longer runs, or after wait (at most a minute).
func (c *Client) AwaitTask(ctx context.Context, id string, wait time.Duration,
	opts ...CallOption) (*Task, error) {
	q := newCall(get, taskPath(id, ""), nil, "wait_ms", int(wait.Milliseconds()))
	q.patience = wait
	return do[Task](ctx, c, q, opts)
}

// CancelTask cancels a task. What it has done so far stays done.
func (c *Client) CancelTask(ctx context.Context, id string, opts ...CallOption) error {
	return c.run(ctx, newCall(remove, taskPath(id, ""), nil), opts)
}

// ResumeTask continues a cancelled task.
func (c *Client) ResumeTask(ctx context.Context, id string, opts ...CallOption) (*Task, error) {
	return do[Task](ctx, c, newCall(post, taskPath(id, "/resume"), nil), opts)
}

// PutWebhook creates a webhook, or replaces the definition of an existing one; created says which.
func (c *Client) PutWebhook(ctx context.Context, name string, d WebhookDefinition,
	opts ...CallOption) (w *Webhook, created bool, err error) {
	return doCreate[Webhook](ctx, c, newCall(put, webhookPath(name), d), opts)
}

// Webhook returns a webhook's definition.
func (c *Client) Webhook(ctx context.Context, name string, opts ...CallOption) (*Webhook, error) {
	return do[Webhook](ctx, c, newCall(get, webhookPath(name), nil), opts)
}

// Webhooks returns all webhooks, by name.
func (c *Client) Webhooks(ctx context.Context, opts ...CallOption) ([]Webhook, error) {
	return collect(pages(func(cursor string) ([]Webhook, string, error) {
		page, err := c.WebhookPage(ctx, cursor, 0, opts...)
		return page.Webhooks, page.NextCursor, err
	}))
}

// WebhookPage is Webhooks in pages of at most limit, 0 for the server's default; after is the last
// page's NextCursor.
func (c *Client) WebhookPage(ctx context.Context, after string, limit int,
	opts ...CallOption) (*WebhookList, error) {
	q := newCall(get, "/v1/webhooks", nil, "cursor", after, "limit", limit)
	return do[WebhookList](ctx, c, q, opts)
}

// Deliveries returns the newest requests to a webhook, the newest first, as far as nodes remember
// them: 100 each.
func (c *Client) Deliveries(ctx context.Context, webhook string,
	opts ...CallOption) ([]WebhookDelivery, error) {
	q := newCall(get, webhookPath(webhook)+"/deliveries", nil)
	out, err := do[[]WebhookDelivery](ctx, c, q, opts)
	return *out, err
}

// DeleteWebhook deletes a webhook.
func (c *Client) DeleteWebhook(ctx context.Context, name string, opts ...CallOption) error {
	return c.run(ctx, newCall(remove, webhookPath(name), nil), opts)
}

// Definitions returns all queues and webhooks, in the form that Define takes.
func (c *Client) Definitions(ctx context.Context, opts ...CallOption) (*Definitions, error) {
	return do[Definitions](ctx, c, newCall(get, "/v1/definitions", nil), opts)
}

// Define puts queues and webhooks, all or none, and returns the changes; with dryRun the changes
// are only computed. All that is wrong with the request is in Problem.Errors of an *Error.
func (c *Client) Define(ctx context.Context, d DefinitionsRequest, dryRun bool,
	opts ...CallOption) ([]DefinitionChange, error) {
	q := newCall(put, "/v1/definitions", d, "dry_run", dryRun)
	out, err := do[wire.DefinitionChanges](ctx, c, q, opts)
	return out.Changes, err
}

// Cluster returns the cluster as the asked node knows it, also without a leader.
func (c *Client) Cluster(ctx context.Context, opts ...CallOption) (*Cluster, error) {
	return do[Cluster](ctx, c, newCall(get, "/v1/cluster", nil), opts)
}

// AddNode adds a node to the cluster. created is false if it was a member with the same data.
func (c *Client) AddNode(ctx context.Context, n NewNode,
	opts ...CallOption) (node *Node, created bool, err error) {
	return doCreate[Node](ctx, c, newCall(post, "/v1/cluster/nodes", n), opts)
}

// RemoveNode removes a node for ever; with force, also if the remaining voters have
// no reachable majority.
func (c *Client) RemoveNode(ctx context.Context, id string, force bool, opts ...CallOption) error {
	q := newCall(remove, "/v1/cluster/nodes/"+url.PathEscape(id), nil, "force", force)
	err := c.run(ctx, q, opts)
	if q.unknown && errors.Is(err, ErrNodeNotFound) {
		return nil // the answer to the first try was lost
	}
	return err
}

// VerifyNode begins to verify the files of a node, in a task whose Verified has what it found.
func (c *Client) VerifyNode(ctx context.Context, id string, opts ...CallOption) (*Task, error) {
	q := newCall(post, "/v1/cluster/nodes/"+url.PathEscape(id)+"/verify", nil)
	return do[Task](ctx, c, q, opts)
}

// TransferLeadership makes a voter the leader or, for "", the most advanced one. It
// returns the leader's id, "" if it is not known yet.
func (c *Client) TransferLeadership(ctx context.Context, to string,
	opts ...CallOption) (string, error) {
	var in wire.TransferRequest
	if to != "" {
		in.To = &to
	}
	q := newCall(post, "/v1/cluster/transfer-leadership", in)
	out, err := do[wire.Transferred](ctx, c, q, opts)
	return out.LeaderID, err
}

// Snapshot makes every node take a checkpoint, and returns their indexes by node.
func (c *Client) Snapshot(ctx context.Context, opts ...CallOption) (map[string]uint64, error) {
	q := newCall(post, "/v1/cluster/snapshot", nil)
	q.patience = time.Minute
	out, err := do[wire.ClusterSnapshot](ctx, c, q, opts)
	return out.Indexes, err
}

// LogHead returns the index and the chain of the event log's newest block, or with At those of an
// instant. Kept elsewhere, they show whether the log was cut or rewritten since.
func (c *Client) LogHead(ctx context.Context, opts ...CallOption) (*LogHead, error) {
	return do[LogHead](ctx, c, newCall(get, "/v1/log/head", nil), opts)
}

// LogSegments returns the files of the asked node's event log.
func (c *Client) LogSegments(ctx context.Context, opts ...CallOption) (*LogSegments, error) {
	return do[LogSegments](ctx, c, newCall(get, "/v1/log/segments", nil), opts)
}

// Projections returns the progress of the asked node's read models.
func (c *Client) Projections(ctx context.Context, opts ...CallOption) (*Projections, error) {
	return do[Projections](ctx, c, newCall(get, "/v1/projections", nil), opts)
}

// RebuildProjections makes the asked node rebuild its read models in the background.
func (c *Client) RebuildProjections(ctx context.Context, opts ...CallOption) (*Projections, error) {
	return do[Projections](ctx, c, newCall(post, "/v1/projections/rebuild", nil), opts)
}

// pages iterates over the items of all pages that fetch returns, each with the cursor of
// the next one, "" at the end.
func pages[T any](fetch func(cursor string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor := ""; ; {
			items, next, err := fetch(cursor)
			if err != nil {
				yield(*new(T), err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if cursor = next; cursor == "" {
				return
			}
		}
	}
}

// collect returns all items, unless there is an error.
func collect[T any](items iter.Seq2[T, error]) (all []T, err error) {
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, nil
}
