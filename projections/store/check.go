package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/event"
)

// Difference is the first thing in a file of read models that is not what a fold
// of its log gives. An event of the log itself can't be wrong here.
type Difference struct {
	Where string // the read model, and what of it
	File  string // what the file says, "" nothing
	Fold  string // what the fold gives, "" nothing
}

func (d *Difference) Error() string {
	say := func(s string) string {
		if s == "" {
			return "nothing"
		}
		return s
	}
	return fmt.Sprintf("%s: the file has %s, the fold of the log %s", d.Where, say(d.File), say(d.Fold))
}

// Checked is what Check has compared.
type Checked struct {
	Position uint64 // up to which the file, and so the fold, counts
	Rows     int    // compared
	// Partly: the log's beginning is deleted, so what was counted of it can't be
	// counted again. What reaches back there must be at least what the fold has.
	Partly bool
}

// Check folds a log from scratch, in a temporary file, up to where the read
// models in the file at path are, and compares the two row by row. What differs
// is a *Difference. The file must not be in use, and is not changed. each, if not
// nil, is told the index that is counted.
func Check(ctx context.Context, path, cluster string, src Source, opts Options, each func(index uint64)) (Checked, error) {
	var out Checked
	opts.Interval, opts.scratch = -1, true
	if _, err := os.Stat(path); err != nil {
		return out, fmt.Errorf("read models: %w", err)
	}
	dir, err := os.MkdirTemp("", "qlogd-check-")
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(dir)
	var db *bolt.DB
	err = guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: waitForFile})
		return err
	})
	if err != nil {
		return out, fmt.Errorf("read models %s: %w", path, err)
	}
	defer db.Close()
	at, err := stateIn(db)
	if err != nil {
		return out, differs("the file", err)
	}
	c := comparison{out: &out}
	c.deleted, c.clock = src.Begins()
	out.Position, out.Partly = at.position, c.deleted > 0
	switch {
	case at.cluster != cluster:
		return out, &Difference{Where: "the cluster", File: at.cluster, Fold: cluster}
	case at.position > src.Head():
		return out, &Difference{Where: "the position", File: fmt.Sprint(at.position), Fold: fmt.Sprintf("at most %d, where the log ends", src.Head())}
	}
	scratch, err := Open(filepath.Join(dir, "projections.db"), cluster, opts)
	if err != nil {
		return out, err
	}
	defer scratch.Close()
	if err := scratch.countTo(ctx, src, at.position, each); err != nil {
		return out, err
	}
	c.file, c.fold = db, scratch.db
	return out, guard(c.run)
}

// countTo counts the log up to an index.
func (s *Store) countTo(ctx context.Context, src Source, to uint64, each func(uint64)) error {
	b, file := newBatch(s.at, s.opts.MaxRows), s.file
	_, b.clock = src.Begins()
	for k, err := range src.Outlines(1, whole) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if k.Index > to {
			break
		}
		if b.add(k); b.events < s.opts.MaxEvents {
			continue
		}
		if err := s.commit(b, file); err != nil {
			return err
		}
		if each != nil {
			each(b.position)
		}
		b = newBatch(s.at, s.opts.MaxRows)
	}
	return s.commit(b, file)
}

// stateIn reads what a file says of itself.
func stateIn(db *bolt.DB) (at state, err error) {
	err = guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			for _, name := range buckets {
				if tx.Bucket(name) == nil {
					return fmt.Errorf("%w: it has no %s", errCorrupt, name)
				}
			}
			v, err := get(tx.Bucket(bucketMeta), keyState)
			if err == nil {
				at, err = decodeState(v)
			}
			return err
		})
	})
	return at, err
}

// differs makes damage a difference.
func differs(where string, err error) error {
	if errors.Is(err, errCorrupt) {
		return &Difference{Where: where, File: err.Error(), Fold: "what was written"}
	}
	return err
}

// comparison goes over two files.
type comparison struct {
	file, fold *bolt.DB
	deleted    uint64 // the newest block that the log has no more; 0: it is whole
	clock      int64  // the log's clock there
	out        *Checked
}

func (c *comparison) run() error {
	return c.file.View(func(a *bolt.Tx) error {
		return c.fold.View(func(b *bolt.Tx) error {
			for _, name := range buckets {
				if err := c.bucket(name, a.Bucket(name), b.Bucket(name)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// bucket compares the rows of two buckets, both in the order of their keys.
func (c *comparison) bucket(name []byte, a, b *bolt.Bucket) error {
	x, y := a.Cursor(), b.Cursor()
	k, v := x.First()
	l, w := y.First()
	for k != nil || l != nil {
		var key, got, want []byte
		switch {
		case l == nil || k != nil && bytes.Compare(k, l) < 0:
			key, got = k, v
		case k == nil || bytes.Compare(k, l) > 0:
			key, want = l, w
		default:
			key, got, want = k, v, w
		}
		got, err := open(key, got)
		if err != nil {
			return differs(rowName(name, key), err)
		}
		if want, err = open(key, want); err != nil {
			return err
		}
		c.out.Rows++
		if !c.agree(name, key, got, want) {
			return &Difference{Where: rowName(name, key), File: rowText(got), Fold: rowText(want)}
		}
		if got != nil {
			k, v = x.Next()
		}
		if want != nil {
			l, w = y.Next()
		}
	}
	return nil
}

// agree reports whether a row in the file can stand against the fold's.
func (c *comparison) agree(name, key, got, want []byte) bool {
	if bytes.Equal(got, want) && (got == nil) == (want == nil) {
		return true
	}
	if c.deleted == 0 {
		return false
	}
	// The log's beginning is gone: what was counted of it is in the file alone.
	clock := uint64(c.clock)
	switch {
	case bytes.Equal(name, bucketMeta):
		return sameButRows(got, want)
	case bytes.Equal(name, bucketMinutes):
		return len(key) >= 8 && binary.BigEndian.Uint64(key) <= clock/minuteMS
	case bytes.Equal(name, bucketSeconds):
		return len(key) >= 8 && binary.BigEndian.Uint64(key) <= clock/secondMS
	case bytes.Equal(name, bucketOperations):
		return len(key) == 24 && binary.BigEndian.Uint64(key[16:]) <= c.deleted
	case bytes.Equal(name, bucketUntil):
		return len(key) == 8+24 && binary.BigEndian.Uint64(key[8+16:]) <= c.deleted
	case bytes.Equal(name, bucketReplayed):
		return false // trimmed with history, in both
	}
	return atLeast(got, want)
}

// sameButRows compares what two files say of themselves, but for the number of
// rows by minute.
func sameButRows(a, b []byte) bool {
	x, errA := decodeState(a)
	y, errB := decodeState(b)
	x.rows, y.rows = 0, 0
	return errA == nil && errB == nil && x == y
}

func atLeast(got, want []byte) bool {
	if len(want) == 0 {
		return true
	}
	return len(got) == 8 && len(want) == 8 && binary.BigEndian.Uint64(got) >= binary.BigEndian.Uint64(want)
}

// rowName says in words which row a key is of.
func rowName(bucket, key []byte) string {
	name := string(bucket)
	switch b := bucket; {
	case bytes.Equal(b, bucketMinutes), bytes.Equal(b, bucketSeconds):
		if len(key) >= 8 {
			return fmt.Sprintf("%s: %s %d of queue %q", name, name[:len(name)-1], binary.BigEndian.Uint64(key), key[8:])
		}
	case bytes.Equal(b, bucketTotals) && len(key) == 1:
		return fmt.Sprintf("%s: %s", name, event.Type(key[0]))
	case bytes.Equal(b, bucketOfQueue) && len(key) > 2:
		return fmt.Sprintf("totals of queue %q: %s", key[:len(key)-2], event.Type(key[len(key)-1]))
	case bytes.Equal(b, bucketDead) && len(key) > 2:
		return fmt.Sprintf("dead letters of queue %q: %s", key[:len(key)-2], event.Reason(key[len(key)-1]))
	case bytes.Equal(b, bucketReplayed):
		if queue, id, err := parseReplayedKey(key); err == nil {
			return fmt.Sprintf("replayed of queue %q: %s", queue, id)
		}
	case bytes.Equal(b, bucketMeta):
		return name
	}
	return fmt.Sprintf("%s: %x", name, key)
}

// rowText says a value: numbers where it is of numbers.
func rowText(v []byte) string {
	switch {
	case v == nil:
		return ""
	case len(v) == 0:
		return "a row"
	case len(v)%8 != 0:
		return fmt.Sprintf("%x", v)
	}
	var n []uint64
	for ; len(v) > 0; v = v[8:] {
		n = append(n, binary.BigEndian.Uint64(v))
	}
	return fmt.Sprint(n)
}
