package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// PostgreSQL is a table that is worked off with SKIP LOCKED, in PostgreSQL 15 of
// Debian's package, with synchronous_commit on.
//
// Given to it: 1 GiB of shared buffers, 8 GiB of WAL between checkpoints
// (postgresql.org/docs, "WAL Configuration") and a vacuum that keeps up with a
// queue: the table is vacuumed after 10,000 dead rows, checked every second and
// not slowed down (same place, "Automatic Vacuuming"), and a commit that waits
// 0.2 ms for others where 16 more are under way, which spares a third of the
// processor time of 64 single inserts. A batch is one INSERT of many rows
// (unnest of an array). A worker deletes what it takes in a transaction that
// stays open until the ack commits it, DELETE … WHERE id = ANY (SELECT … FOR
// UPDATE SKIP LOCKED) RETURNING, so a message costs one row version and a crash
// gives it back; begin and delete are one round trip. Statements are
// prepared; producers and workers share pgx's pool with 160 connections.
func PostgreSQL() system.System { return &postgres{} }

type postgres struct {
	server
	queues
	pool *pgxpool.Pool
}

const postgresBin = "/usr/lib/postgresql/15/bin/"

func (*postgres) Name() string { return "postgres" }

func (*postgres) Durable() string {
	return "the transaction, of a batch or of an ack, is in the WAL, after fdatasync"
}

func (*postgres) Missing() string {
	return system.Lacks("postgresql-15", postgresBin+"initdb", postgresBin+"postgres")
}

func (s *postgres) Start(ctx context.Context, dir string) error {
	ports, err := system.Ports(1)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	attr, err := unprivileged(data)
	if err != nil {
		return err
	}
	initdb := exec.CommandContext(ctx, postgresBin+"initdb", "-D", data, "-U", "bench",
		"-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = attr, data
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	args := []string{"-D", data}
	for _, setting := range []string{
		"listen_addresses=127.0.0.1", fmt.Sprint("port=", ports[0]), "unix_socket_directories=",
		"max_connections=200", "synchronous_commit=on", "fsync=on", "shared_buffers=1GB",
		"max_wal_size=8GB", "checkpoint_timeout=15min", "autovacuum_naptime=1s",
		"autovacuum_vacuum_cost_delay=0", "commit_delay=200", "commit_siblings=16",
	} {
		args = append(args, "-c", setting)
	}
	cmd := exec.Command(postgresBin+"postgres", args...)
	cmd.Dir = data
	if attr != nil {
		own := *attr
		cmd.SysProcAttr = &own
	}
	if s.proc, err = system.Run(dir, "postgres", cmd); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(fmt.Sprintf(
		"postgres://bench@127.0.0.1:%d/postgres?pool_max_conns=160", ports[0]))
	if err != nil {
		return err
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	return s.proc.Ready(ctx, s.pool.Ping)
}

// unprivileged says as whom to run what does not run as root, and gives data to
// that user; nil where we are not root. Folders above that only we can enter, as
// temporary ones, are opened for passing through.
func unprivileged(data string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2, os.Chown(data, uid, gid)); err != nil {
		return nil, err
	}
	for above := filepath.Dir(data); above != "/"; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return nil, err
		}
		if info.Mode()&0o001 == 0 {
			if err := os.Chmod(above, info.Mode()|0o001); err != nil {
				return nil, err
			}
		}
	}
	as := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return &syscall.SysProcAttr{Credential: as}, nil
}

func (s *postgres) Stop() error {
	if s.pool != nil {
		s.pool.Close()
	}
	err := s.stop(syscall.SIGINT) // at once, without waiting for clients
	*s = postgres{}
	return err
}

func (s *postgres) Fresh(ctx context.Context) (load.Target, error) {
	t := &postgresTarget{pool: s.pool, table: s.next()}
	_, err := s.pool.Exec(ctx, fmt.Sprintf(`DROP TABLE IF EXISTS q%d; CREATE TABLE %s (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL
		) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
			autovacuum_vacuum_insert_threshold = -1)`, s.queues-1, t.table),
		pgx.QueryExecModeSimpleProtocol)
	return t, err
}

type postgresTarget struct {
	pool  *pgxpool.Pool
	table string
}

func (t *postgresTarget) Count(ctx context.Context) (n int, err error) {
	err = t.pool.QueryRow(ctx, "SELECT count(*) FROM "+t.table).Scan(&n)
	return n, err
}

func (t *postgresTarget) Producer(context.Context) (load.Producer, error) {
	return &postgresProducer{
		pool: t.pool,
		one:  "INSERT INTO " + t.table + " (payload) VALUES ($1)",
		many: "INSERT INTO " + t.table + " (payload) SELECT unnest($1::bytea[])",
	}, nil
}

type postgresProducer struct {
	open
	pool      *pgxpool.Pool
	one, many string
	rows      [][]byte
}

func (p *postgresProducer) Produce(ctx context.Context, batch []load.Message) error {
	if len(batch) == 1 {
		_, err := p.pool.Exec(ctx, p.one, batch[0].Payload)
		return err
	}
	p.rows = p.rows[:0]
	for _, m := range batch {
		p.rows = append(p.rows, m.Payload)
	}
	_, err := p.pool.Exec(ctx, p.many, p.rows)
	return err
}

func (t *postgresTarget) Worker(ctx context.Context) (load.Worker, error) {
	conn, err := t.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &postgresWorker{conn: conn, take: fmt.Sprintf("DELETE FROM %s WHERE id = ANY "+
		"(ARRAY(SELECT id FROM %[1]s ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) "+
		"RETURNING id, payload", t.table)}, nil
}

type postgresWorker struct {
	conn *pgxpool.Conn
	take string
	busy bool // a transaction that has taken something is open
}

func (w *postgresWorker) Take(ctx context.Context, most int) ([]load.Delivery, error) {
	// A table does not announce a new row: ask again, a little later each time.
	pause := time.Millisecond
	for began := time.Now(); time.Since(began) < time.Second && ctx.Err() == nil; {
		all, err := w.try(ctx, most)
		if err != nil || len(all) > 0 {
			return all, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return nil, nil
}

// try takes what there is, and leaves the transaction open if there is any.
func (w *postgresWorker) try(ctx context.Context, most int) ([]load.Delivery, error) {
	// An end of ctx would close the connection: what is asked is answered.
	ctx = context.WithoutCancel(ctx)
	b := &pgx.Batch{}
	if !w.busy {
		b.Queue("BEGIN")
	}
	b.Queue(w.take, most)
	results := w.conn.SendBatch(ctx, b)
	if !w.busy {
		if _, err := results.Exec(); err != nil {
			return nil, errors.Join(err, results.Close())
		}
		w.busy = true
	}
	rows, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	var all []load.Delivery
	for rows.Next() {
		var d load.Delivery
		var id int64
		if err := rows.Scan(&id, &d.Payload); err != nil {
			return nil, errors.Join(err, results.Close())
		}
		d.Handle = id
		all = append(all, d)
	}
	if err := errors.Join(rows.Err(), results.Close()); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, w.commit(ctx) // a transaction that stays open would hold vacuum up
	}
	return all, nil
}

func (w *postgresWorker) commit(ctx context.Context) error {
	w.busy = false
	_, err := w.conn.Exec(ctx, "COMMIT")
	return err
}

// Ack commits the deletion of all that was taken since the last: load acks just that.
func (w *postgresWorker) Ack(ctx context.Context, _ []load.Delivery) error { return w.commit(ctx) }

func (w *postgresWorker) Close() error {
	var err error
	if w.busy {
		_, err = w.conn.Exec(context.Background(), "ROLLBACK")
	}
	w.conn.Release()
	return err
}
