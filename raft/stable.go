package raft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/internal/pages"
)

// KV is a small durable store of keys: each SetStable is on disk when it returns, and a crash
// leaves the old value or the new. GetStable of a missing key returns nil.
type KV interface {
	GetStable(key []byte) ([]byte, error)
	SetStable(key, value []byte) error
	Close() error
}

// The names under which hashicorp/raft stores terms and votes.
const (
	keyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"

	keyVote = "Vote" // ours: both of a vote
)

// votes is Raft's StableStore: the current term, and the last vote.
//
// hashicorp/raft's persistVote writes a vote's term and its candidate in two calls. A crash in
// between would leave the new term beside the candidate of an earlier vote, and the node would vote
// for that one. So the term is kept in memory until the candidate is stored, and both are written
// under one key; before that no response was sent, and the earlier vote is right.
//
// Each value has a checksum: bbolt detects no flipped bits, and a wrong one can elect two leaders.
type votes struct {
	kv   KV
	file string // its name
	disk *disk

	mu sync.Mutex
	// voteTerm and candidate are the last whole vote; nil: none.
	voteTerm  uint64
	candidate []byte
	// held is the term of a vote whose candidate is not stored yet; 0: none.
	held uint64

	// current is the current term, from before it is written. It changes only while still is not
	// held (during), and is read without: to lock for reading twice can deadlock.
	current atomic.Uint64
	still   sync.RWMutex
}

var _ hraft.StableStore = (*votes)(nil)

// readVotes reads what is in a store, which may be new.
func readVotes(kv KV, file string, disk *disk) (*votes, error) {
	v := &votes{kv: kv, file: file, disk: disk}
	term, err := v.get(keyCurrentTerm)
	vote, voteErr := v.get(keyVote)
	switch {
	case err != nil || voteErr != nil:
		return nil, errors.Join(err, voteErr)
	case term != nil && len(term) != 8, vote != nil && len(vote) < 8:
		return nil, fmt.Errorf("%w: the term or the vote is cut", pages.ErrDamaged)
	}
	if term != nil {
		v.current.Store(binary.BigEndian.Uint64(term))
	}
	if vote != nil {
		v.voteTerm, v.candidate = binary.BigEndian.Uint64(vote), vote[8:]
	}
	return v, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal appends a checksum of key and value, so that no value is taken for another key's.
func seal(key string, value []byte) []byte {
	crc := crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, value)
	return binary.BigEndian.AppendUint32(slices.Clone(value), crc)
}

// get returns what is stored; nil: nothing.
func (v *votes) get(key string) ([]byte, error) {
	b, err := v.kv.GetStable([]byte(key))
	if err != nil {
		return nil, fmt.Errorf("read Raft's %s: %w", key, err)
	}
	value := b[:max(0, len(b)-crc32.Size)]
	if b != nil && !bytes.Equal(seal(key, value), b) {
		return nil, fmt.Errorf("%w: wrong checksum of Raft's %s", pages.ErrDamaged, key)
	}
	return value, nil
}

// set does not return in a running replica if it fails: hashicorp/raft would panic, and a node that
// does not know for whom it voted must not continue.
func (v *votes) set(key string, value []byte) error {
	err := v.disk.Write("write Raft's "+key, v.file, func() error {
		return v.kv.SetStable([]byte(key), seal(key, value))
	})
	if err != nil {
		v.disk.die(err)
	}
	return err
}

func (v *votes) Set(key, value []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if string(key) != keyLastVoteCand {
		return v.set(string(key), value)
	}
	if v.held == 0 {
		return errors.New("a vote's candidate was stored without its term")
	}
	v.voteTerm, v.candidate, v.held = v.held, append([]byte{}, value...), 0
	return v.set(keyVote, append(binary.BigEndian.AppendUint64(nil, v.voteTerm), value...))
}

func (v *votes) SetUint64(key []byte, n uint64) error {
	if string(key) == keyCurrentTerm {
		if v.current.Load() == n {
			return nil // it is on disk: else the main loop, which writes it, was not done
		}
		v.still.Lock()
		v.current.Store(n)
		v.still.Unlock()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if string(key) == keyLastVoteTerm {
		v.held = n
		return nil
	}
	return v.set(string(key), binary.BigEndian.AppendUint64(nil, n))
}

// during runs f, and returns its result, if term is the current one, which does not change
// before f has returned. f may set the same term.
func (v *votes) during(term uint64, f func() bool) bool {
	v.still.RLock()
	defer v.still.RUnlock()
	return v.current.Load() == term && f()
}

// Get implements hraft.StableStore, for the candidate of the last vote.
func (v *votes) Get([]byte) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.candidate, nil
}

// GetUint64 implements hraft.StableStore, for the current term and that of the last vote.
func (v *votes) GetUint64(key []byte) (uint64, error) {
	if string(key) == keyCurrentTerm {
		return v.current.Load(), nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.voteTerm, nil
}

// boltKV is raft-boltdb as a KV.
type boltKV struct{ *raftboltdb.BoltStore }

func openBolt(file string) (KV, error) {
	s, err := raftboltdb.New(raftboltdb.Options{
		Path: file,
		// A second process would wait forever for the file's lock.
		BoltOptions: &bbolt.Options{Timeout: time.Second},
	})
	if err != nil {
		return nil, err
	}
	return boltKV{s}, nil
}

func (b boltKV) GetStable(key []byte) ([]byte, error) {
	v, err := b.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil
	}
	return v, err
}

func (b boltKV) SetStable(key, value []byte) error { return b.Set(key, value) }
