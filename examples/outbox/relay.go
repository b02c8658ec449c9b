package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qlogd/qlogd/client"
)

const (
	batchRows  = 500
	batchBytes = 4 << 20 // of payload in one request

	// sendTime limits how long a batch may be sent. margin is for what the server may still do
	// with it: a row that was first tried longer ago than its queue's deduplication window less
	// margin is not sent again.
	sendTime = 30 * time.Second
	margin   = 2 * time.Minute

	pauseMin, pauseMax = 100 * time.Millisecond, 5 * time.Second // after errors

	policyFor = time.Minute // for which a queue's policy is remembered

	lock = 0x6f7574626f78 // PostgreSQL's advisory lock of the relay that works
)

// queueError is a queue's, which is paused then. Other errors are the database's, or errTooOld.
type queueError struct{ error }

// errBadRow is about a row that is no message.
var errBadRow = errors.New("not a message")

// errTooOld is about rows that may have arrived, and can no longer be sent again without harm.
var errTooOld = errors.New("rows were sent too long ago")

// relay moves the rows of the table outbox to qlogd. Several may run: one works, the others wait
// for its lock. So messages of a queue keep the order of their rows.
type relay struct {
	database string
	queues   *client.Client
	poll     time.Duration
	log      *slog.Logger

	windows map[string]window
	paused  map[string]pause // queues that refuse messages
}

// window is a queue's deduplication window, and when it was read.
type window struct {
	time.Duration
	read time.Time
}

// pause is how long a queue is left alone after an error.
type pause struct {
	until time.Time
	last  time.Duration
}

// row is a row of the table, and how long ago it was first tried: nil if it was not.
type row struct {
	id      int64
	queue   string
	message client.NewMessage
	tried   *float64 // seconds
	bad     error    // its headers are not strings
}

func newRelay(database string, c *client.Client, poll time.Duration, log *slog.Logger) *relay {
	return &relay{database: database, queues: c, poll: poll, log: log,
		windows: map[string]window{}, paused: map[string]pause{}}
}

// run works until ctx ends, and connects again when PostgreSQL was away. It returns an error if
// rows need an operator.
func (r *relay) run(ctx context.Context) error {
	wait := pauseMin
	for ctx.Err() == nil {
		began := time.Now()
		err := r.session(ctx)
		if errors.Is(err, errTooOld) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > pauseMax {
			wait = pauseMin
		}
		r.log.Warn("database failed, connecting again", "in", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, pauseMax)
	}
	return nil
}

// session works with one connection, until it breaks or ctx ends.
func (r *relay) session(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, r.database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// It is released with the connection, whatever becomes of this process.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lock); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "LISTEN outbox"); err != nil { // before the first look
		return err
	}
	r.log.Info("relaying", "pid", conn.PgConn().PID())
	for ctx.Err() == nil {
		// What is begun is finished: a batch that was sent should be deleted.
		n, err := r.batch(context.WithoutCancel(ctx), conn)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := r.await(ctx, conn); err != nil {
				return err
			}
		}
	}
	return nil
}

// await returns when rows were inserted, or after the time to poll.
func (r *relay) await(ctx context.Context, conn *pgx.Conn) error {
	wait, cancel := context.WithTimeout(ctx, r.poll)
	defer cancel()
	_, err := conn.WaitForNotification(wait)
	if wait.Err() != nil {
		return nil
	}
	return err
}

// batch moves the next rows, and returns how many are done with.
func (r *relay) batch(ctx context.Context, conn *pgx.Conn) (done int, err error) {
	rows, err := r.next(ctx, conn)
	if err != nil {
		return 0, err
	}
	byQueue := map[string][]row{}
	for _, w := range rows {
		byQueue[w.queue] = append(byQueue[w.queue], w)
	}
	for _, queue := range slices.Sorted(maps.Keys(byQueue)) {
		n, err := r.moveAll(ctx, conn, queue, byQueue[queue])
		done += n
		if e, ok := errors.AsType[queueError](err); ok {
			p := pause{last: min(max(2*r.paused[queue].last, pauseMin), pauseMax)}
			p.until = time.Now().Add(p.last)
			r.paused[queue] = p
			r.log.Warn("messages not enqueued, retrying", "queue", queue, "in", p.last, "error", e.error)
			continue
		}
		if err != nil {
			return done, err
		}
		delete(r.paused, queue)
	}
	return done, nil
}

// next returns the first rows of queues that are not paused. There is no cursor: transactions
// commit in another order than that in which they were given their ids.
func (r *relay) next(ctx context.Context, conn *pgx.Conn) (out []row, err error) {
	paused := []string{}
	for queue, p := range r.paused {
		if time.Now().Before(p.until) {
			paused = append(paused, queue)
		}
	}
	rows, err := conn.Query(ctx, `SELECT id, queue, idempotency_key::text, key, kind, headers, payload,
			extract(epoch FROM clock_timestamp() - tried_at)::float8
		FROM outbox WHERE error IS NULL AND queue <> ALL($1) ORDER BY id LIMIT $2`, paused, batchRows)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(rows pgx.CollectableRow) (w row, err error) {
		m := &w.message
		var headers, payload []byte
		err = rows.Scan(&w.id, &w.queue, &m.IdempotencyKey, &m.Key, &m.Kind, &headers, &payload, &w.tried)
		m.Payload = payload
		w.bad = json.Unmarshal(headers, &m.Headers)
		return w, err
	})
}

// moveAll moves a queue's rows in their order.
func (r *relay) moveAll(ctx context.Context, conn *pgx.Conn, queue string,
	rows []row) (done int, err error) {
	limit, err := r.window(ctx, queue)
	if err != nil {
		return 0, queueError{err}
	}
	for len(rows) > 0 && err == nil {
		n, size := 0, 0
		for n < len(rows) && (n == 0 || size+len(rows[n].message.Payload) <= batchBytes) {
			if t := rows[n].tried; t != nil && *t > (limit-margin).Seconds() {
				return done, fmt.Errorf("%w: row %d of queue %q was first sent %.0f s ago, and the "+
					"queue knows duplicates for %.0f s: delete the row if its message has arrived, "+
					"else set its tried_at to null", errTooOld, rows[n].id, queue, *t, limit.Seconds())
			}
			size += len(rows[n].message.Payload)
			n++
		}
		n, err = r.move(ctx, conn, queue, rows[:n])
		done, rows = done+n, rows[n:]
	}
	return done, err
}

// move sends rows in one request and deletes them.
func (r *relay) move(ctx context.Context, conn *pgx.Conn, queue string,
	rows []row) (done int, err error) {
	// Durable before anything is sent: a row that was not tried can be sent at any age.
	if _, err := conn.Exec(ctx, `UPDATE outbox SET tried_at = clock_timestamp()
		WHERE id = ANY($1) AND tried_at IS NULL`, ids(rows)); err != nil {
		return 0, err
	}
	failed := r.send(ctx, queue, rows)
	if failed == nil {
		_, err := conn.Exec(ctx, "DELETE FROM outbox WHERE id = ANY($1)", ids(rows))
		return len(rows), err
	}
	if !errors.Is(failed, client.ErrOutcomeUnknown) { // surely not enqueued by this try
		untried := slices.DeleteFunc(slices.Clone(rows), func(w row) bool { return w.tried != nil })
		if _, err := conn.Exec(ctx, "UPDATE outbox SET tried_at = NULL WHERE id = ANY($1)",
			ids(untried)); err != nil {
			return 0, err
		}
	}
	switch {
	case !refused(failed):
		return 0, queueError{failed}
	case len(rows) > 1: // one of them is to blame
		half := len(rows) / 2
		if done, err = r.move(ctx, conn, queue, rows[:half]); err != nil {
			return done, err
		}
		n, err := r.move(ctx, conn, queue, rows[half:])
		return done + n, err
	}
	r.log.Error("message refused", "row", rows[0].id, "queue", queue, "error", failed)
	_, err = conn.Exec(ctx, "UPDATE outbox SET error = $1 WHERE id = $2", failed.Error(), rows[0].id)
	return 1, err
}

// send enqueues rows, all or none. Those that arrived before are duplicates.
func (r *relay) send(ctx context.Context, queue string, rows []row) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	messages := make([]client.NewMessage, len(rows))
	for i, w := range rows {
		if w.bad != nil {
			return fmt.Errorf("%w: headers: %w", errBadRow, w.bad)
		}
		messages[i] = w.message
	}
	_, err := r.queues.Produce(ctx, queue, messages...)
	return err
}

// refused reports whether messages were refused for what they are: another try would not help.
func refused(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return errors.Is(err, errBadRow) || ok && (e.Problem.Status == http.StatusBadRequest ||
		e.Problem.Status == http.StatusRequestEntityTooLarge)
}

// window returns how long a queue knows a message's duplicates. It refuses a queue that does not
// know them by their keys, or not for as long as sending may take.
func (r *relay) window(ctx context.Context, queue string) (time.Duration, error) {
	if w, ok := r.windows[queue]; ok && time.Since(w.read) < policyFor {
		return w.Duration, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	q, err := r.queues.Queue(ctx, queue)
	if err != nil {
		return 0, err
	}
	d := q.Deduplication
	w := window{time.Duration(d.WindowSeconds) * time.Second, time.Now()}
	if d.By != "key" || d.Until != "window" || w.Duration < 2*margin {
		return 0, fmt.Errorf("queue %q needs deduplication by key until the end of a window of at "+
			"least %s, not by %s until %s of %s", queue, 2*margin, d.By, d.Until, w.Duration)
	}
	r.windows[queue] = w
	return w.Duration, nil
}

func ids(rows []row) []int64 {
	out := make([]int64, len(rows))
	for i, w := range rows {
		out[i] = w.id
	}
	return out
}
