package store

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/event"
)

// Replayed is a dead message that was replayed.
type Replayed struct {
	ID      event.ID // what it became: the id of the replayed event, and of the new message
	DeadID  event.ID // its id in the dead-letter queue
	Queue   string   // the dead-letter queue
	ToQueue string   // where it went
}

// replayedRow is one with the queue in which it had died.
type replayedRow struct {
	diedIn string
	Replayed
}

func (r *Replayed) encode() []byte {
	b := append(make([]byte, 0, 16+len(r.Queue)+1+len(r.ToQueue)), r.DeadID[:]...)
	b = append(append(b, r.Queue...), 0)
	return append(b, r.ToQueue...)
}

func decodeReplayed(id event.ID, v []byte) (Replayed, error) {
	if len(v) < 16 {
		return Replayed{}, fmt.Errorf("%w: a replay of %d bytes", errCorrupt, len(v))
	}
	from, to, ok := bytes.Cut(v[16:], []byte{0})
	if !ok {
		return Replayed{}, fmt.Errorf("%w: a replay without a queue", errCorrupt)
	}
	return Replayed{ID: id, DeadID: event.ID(v[:16]), Queue: string(from), ToQueue: string(to)}, nil
}

func replayedKey(queue string, id event.ID) []byte {
	return append(append(append(make([]byte, 0, len(queue)+1+16), queue...), 0), id[:]...)
}

func parseReplayedKey(k []byte) (queue string, id event.ID, err error) {
	n := len(k) - 17
	if n < 0 || k[n] != 0 {
		return "", id, fmt.Errorf("%w: a replay under a key of %d bytes", errCorrupt, len(k))
	}
	return string(k[:n]), event.ID(k[n+1:]), nil
}

// Replayed returns up to limit of the messages that died in a queue and were
// replayed, in the order of their replays: those after the one that became
// after, which is the zero id at the start. It goes by the queue's name, as the
// live dead letters do, and back as far as history is kept. Like all here it is
// up to about a second behind the log: WaitFor an index first where it must not
// be.
func (s *Store) Replayed(queue string, after event.ID, limit int) (out []Replayed, err error) {
	err = s.view(func(tx *bolt.Tx, _ *state) error {
		prefix := append([]byte(queue), 0)
		c := tx.Bucket(bucketReplayed).Cursor()
		for k, v := c.Seek(replayedKey(queue, after)); len(out) < limit && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			_, id, err := parseReplayedKey(k)
			if err != nil {
				return err
			}
			if id == after {
				continue
			}
			if v, err = open(k, v); err != nil {
				return err
			}
			r, err := decodeReplayed(id, v)
			if err != nil {
				return err
			}
			out = append(out, r)
		}
		return nil
	})
	return out, err
}
