package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/vmihailenco/msgpack/v5"
	bolt "go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/pages"
)

// format is the version of the layout below. A file of another one is rebuilt.
const format = 3

// The buckets and their keys. Numbers are big-endian, so that keys sort by
// them; each value is MessagePack and ends in a CRC-32C of key and value.
//
//	meta        "state"                       state
//	minutes     minute u64 · queue            Counts
//	seconds     second u64 · queue            enqueued
//	ofqueue     queue · 0x00 · type u8        events
//	dead        queue · 0x00 · reason u8      messages
//	replayed    queue · 0x00 · id [16]        Replayed
//	operations  key [16] · index u64          Operation
//	workers     five minutes u64 · queue · 0x00 · worker   Counted
//	dying       minute u64 · queue            Counted
//	expiries    id of the event [16]          Expiry
//	until       until u64 · key [16] · index  nothing: finds the operations to forget
var (
	bucketMeta       = []byte("meta")
	bucketMinutes    = []byte("minutes")
	bucketSeconds    = []byte("seconds")
	bucketOfQueue    = []byte("ofqueue")
	bucketDead       = []byte("dead")
	bucketReplayed   = []byte("replayed")
	bucketOperations = []byte("operations")
	bucketUntil      = []byte("until")
	bucketWorkers    = []byte("workers")
	bucketDying      = []byte("dying")
	bucketExpiries   = []byte("expiries")

	buckets = [][]byte{
		bucketMeta, bucketMinutes, bucketSeconds, bucketOfQueue, bucketDead, bucketReplayed,
		bucketOperations, bucketUntil, bucketWorkers, bucketDying, bucketExpiries,
	}
	keyState  = []byte("state")
	checksums = crc32.MakeTable(crc32.Castagnoli)
)

// errCorrupt is returned for damage of the file.
var errCorrupt = pages.ErrDamaged

// state is the file's metadata.
type state struct {
	Format   int
	Position uint64 // index of the last block that is counted; 0 none
	Clock    int64  // the log's clock there, Unix ms
	Rows     int    // in bucketMinutes
	Workers  int    // in bucketWorkers
	Expiries int    // in bucketExpiries
	Chain    [32]byte
	Cluster  string
}

// put writes a value with its checksum.
func put(b *bolt.Bucket, key []byte, value any) error {
	v, err := msgpack.Marshal(value)
	if err != nil {
		return err
	}
	return b.Put(key, binary.BigEndian.AppendUint32(v, checksum(key, v)))
}

// get reads the value under a key; false where there is none.
func get[T any](b *bolt.Bucket, key []byte) (v T, found bool, err error) {
	stored := b.Get(key)
	if stored == nil {
		return v, false, nil
	}
	v, err = decode[T](key, stored)
	return v, true, err
}

// decode checks a stored value's checksum and decodes it.
func decode[T any](key, stored []byte) (v T, err error) {
	n := len(stored) - 4
	if n < 0 || binary.BigEndian.Uint32(stored[n:]) != checksum(key, stored[:n]) {
		return v, fmt.Errorf("%w: wrong checksum of the value of key %x", errCorrupt, key)
	}
	if err := msgpack.Unmarshal(stored[:n], &v); err != nil {
		return v, fmt.Errorf("%w: under key %x: %v", errCorrupt, key, err)
	}
	return v, nil
}

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, checksums), checksums, value)
}

// scan calls each with what lies under the keys that begin with prefix, from the
// key from on (nil: the first), until it returns false.
func scan[T any](b *bolt.Bucket, prefix, from []byte, each func(key []byte, v T) bool) error {
	if from == nil {
		from = prefix
	}
	c := b.Cursor()
	for k, stored := c.Seek(from); k != nil && bytes.HasPrefix(k, prefix); k, stored = c.Next() {
		v, err := decode[T](k, stored)
		if err != nil || !each(k, v) {
			return err
		}
	}
	return nil
}

func timeKey(t int64, queue string) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(t)), queue...)
}

func timeOf(key []byte) int64 { return int64(binary.BigEndian.Uint64(key)) }

// ofQueue is the key of something that a queue has: a number, or an id.
func ofQueue(queue string, what ...byte) []byte {
	return append(append([]byte(queue), 0), what...)
}

func operationKey(key event.Hash, index uint64) []byte {
	return binary.BigEndian.AppendUint64(key[:], index)
}
