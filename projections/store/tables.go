package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/event"
)

// format is the version of the layout below. A file of another one is rebuilt.
const format = 1

// The buckets and their keys. Numbers are big-endian, so that keys sort by
// them; each value ends in a CRC-32C of key and value.
//
//	meta        "state"                       format u8 · position u64 · clock i64 · rows u64 · chain [32] · cluster id
//	minutes     minute u64 · queue            one u64 for each of Counts' fields
//	seconds     second u64 · queue            enqueued u64
//	totals      type u8                       events u64
//	ofqueue     queue · 0x00 · type u8        events u64
//	dead        queue · 0x00 · reason u8      messages u64
//	replayed    queue · 0x00 · id [16]        id when dead [16] · dead-letter queue · 0x00 · queue it went to
//	operations  key [16] · index u64          time i64 · until i64 · type
//	until       until u64 · key [16] · index  nothing: finds the operations to forget
var (
	bucketMeta       = []byte("meta")
	bucketMinutes    = []byte("minutes")
	bucketSeconds    = []byte("seconds")
	bucketTotals     = []byte("totals")
	bucketOfQueue    = []byte("ofqueue")
	bucketDead       = []byte("dead")
	bucketReplayed   = []byte("replayed")
	bucketOperations = []byte("operations")
	bucketUntil      = []byte("until")

	buckets = [][]byte{
		bucketMeta, bucketMinutes, bucketSeconds, bucketTotals, bucketOfQueue, bucketDead, bucketReplayed, bucketOperations, bucketUntil,
	}
	keyState  = []byte("state")
	checksums = crc32.MakeTable(crc32.Castagnoli)
)

// errCorrupt says that the file holds what was never written.
var errCorrupt = errors.New("the file is damaged")

// state is what the file says of itself.
type state struct {
	position uint64 // index of the last block that is counted; 0 none
	clock    int64  // the log's clock there, Unix ms
	rows     uint64 // in bucketMinutes
	chain    [32]byte
	cluster  string
}

const stateHead = 1 + 8 + 8 + 8 + 32

func (s *state) encode() []byte {
	b := append(make([]byte, 0, stateHead+len(s.cluster)), format)
	b = binary.BigEndian.AppendUint64(b, s.position)
	b = binary.BigEndian.AppendUint64(b, uint64(s.clock))
	b = binary.BigEndian.AppendUint64(b, s.rows)
	b = append(b, s.chain[:]...)
	return append(b, s.cluster...)
}

func decodeState(b []byte) (s state, err error) {
	if len(b) < stateHead {
		return s, fmt.Errorf("%w: a state of %d bytes", errCorrupt, len(b))
	}
	if b[0] != format {
		return s, fmt.Errorf("%w: format %d is not this program's %d", errCorrupt, b[0], format)
	}
	s.position = binary.BigEndian.Uint64(b[1:])
	s.clock = int64(binary.BigEndian.Uint64(b[9:]))
	s.rows = binary.BigEndian.Uint64(b[17:])
	copy(s.chain[:], b[25:])
	s.cluster = string(b[stateHead:])
	return s, nil
}

// put writes a value with its checksum.
func put(b *bolt.Bucket, key, value []byte) error {
	return b.Put(key, binary.BigEndian.AppendUint32(value[:len(value):len(value)], checksum(key, value)))
}

// get reads a value and holds it against its checksum; nil where there is none.
func get(b *bolt.Bucket, key []byte) ([]byte, error) { return open(key, b.Get(key)) }

// open checks a stored value. It aliases the page that it lies on.
func open(key, stored []byte) ([]byte, error) {
	if stored == nil {
		return nil, nil
	}
	n := len(stored) - 4
	if n < 0 || binary.BigEndian.Uint32(stored[n:]) != checksum(key, stored[:n]) {
		return nil, fmt.Errorf("%w: wrong checksum under key %x", errCorrupt, key)
	}
	return stored[:n:n], nil
}

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, checksums), checksums, value)
}

// numbers reads a value of n numbers; zeros where there is none.
func numbers(b *bolt.Bucket, key []byte, into []uint64) (found bool, err error) {
	v, err := get(b, key)
	if err != nil || v == nil {
		return false, err
	}
	if len(v) != 8*len(into) {
		return false, fmt.Errorf("%w: %d bytes under key %x", errCorrupt, len(v), key)
	}
	for i := range into {
		into[i] = binary.BigEndian.Uint64(v[8*i:])
	}
	return true, nil
}

// add adds to the numbers under a key and reports whether the key is new.
func add(b *bolt.Bucket, key []byte, more []uint64) (isNew bool, err error) {
	sum := make([]uint64, len(more))
	found, err := numbers(b, key, sum)
	if err != nil {
		return false, err
	}
	v := make([]byte, 0, 8*len(more)+4)
	for i := range more {
		v = binary.BigEndian.AppendUint64(v, sum[i]+more[i])
	}
	return !found, put(b, key, v)
}

func timeKey(t uint64, queue string) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(queue)), t), queue...)
}

func deadKey(queue string, r event.Reason) []byte {
	return append([]byte(queue), 0, byte(r))
}

func ofQueueKey(queue string, t event.Type) []byte { return append([]byte(queue), 0, byte(t)) }

func operationKey(key event.Hash, index uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 24), key[:]...), index)
}

func untilKey(until int64, operation []byte) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(operation)), uint64(until)), operation...)
}
