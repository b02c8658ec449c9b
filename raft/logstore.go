package raft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"

	"github.com/qlogd/qlogd/internal/pages"
	"github.com/qlogd/qlogd/internal/watchdog"
)

// logStore is the Raft log: raft-wal with checksums, a watchdog, and a cache of the newest entries.
type logStore struct {
	o    *Options
	disk *disk
	// walMu is held for reading by users of wal, and for writing while its files are
	// exchanged (reopen) or closed.
	walMu sync.RWMutex
	wal   *wal.WAL
	filer *segment.Filer
	// floor returns the index up to which the log may be truncated from its front.
	floor func() uint64
	// committed returns an index up to which the log is known to be committed; nil before it is.
	committed func() uint64
	cache     logCache
}

var (
	_ hraft.LogStore = (*logStore)(nil)
	// Without this hashicorp/raft takes the store for one that may have holes, and hands Apply
	// entries that were never committed when a deposed leader has rejoined by snapshot (#697).
	_ hraft.MonotonicLogStore = (*logStore)(nil)
)

func (s *logStore) IsMonotonic() bool { return true } // raft-wal is

func (s *logStore) FirstIndex() (uint64, error) {
	s.walMu.RLock()
	defer s.walMu.RUnlock()
	return s.wal.FirstIndex()
}

func (s *logStore) LastIndex() (uint64, error) {
	s.walMu.RLock()
	defer s.walMu.RUnlock()
	return s.wal.LastIndex()
}

// bounds returns the first and the last index; 0, 0: none.
func (s *logStore) bounds() (first, last uint64, err error) {
	if first, err = s.FirstIndex(); err == nil {
		last, err = s.LastIndex()
	}
	return first, last, err
}

// GetLog implements hraft.LogStore. The entry's data is shared with other callers. An entry that
// is not what was stored ends the process: hashicorp/raft would panic. raft-wal checks sums only of
// the batch at the log's end.
func (s *logStore) GetLog(index uint64, l *hraft.Log) error {
	if s.cache.get(index, l) {
		return nil
	}
	err := s.read(index, l)
	if err != nil && !errors.Is(err, hraft.ErrLogNotFound) && !errors.Is(err, wal.ErrClosed) {
		err = fmt.Errorf("%s: %w", s.o.Dir, err)
		s.disk.die(err)
	}
	return err
}

func (s *logStore) read(index uint64, l *hraft.Log) (err error) {
	defer undecodable(index, &err)
	s.walMu.RLock()
	defer s.walMu.RUnlock()
	// raft-wal still returns what was truncated, as long as its file is there.
	if first, err := s.wal.FirstIndex(); err == nil && index < first {
		return hraft.ErrLogNotFound
	}
	if err := s.wal.GetLog(index, l); err != nil {
		if errors.Is(err, hraft.ErrLogNotFound) {
			return hraft.ErrLogNotFound // hashicorp/raft compares it
		}
		return fmt.Errorf("raft log: read entry %d: %w", index, err)
	}
	return unseallog(index, l)
}

// undecodable, deferred, turns a panic of raft-wal's decoder, which slices by lengths that it has
// just read, into an error.
func undecodable(index uint64, err *error) {
	if recover() != nil {
		*err = fmt.Errorf("raft log: %w: entry %d cannot be decoded", pages.ErrDamaged, index)
	}
}

func logSum(l *hraft.Log) uint32 {
	var b [17]byte
	binary.BigEndian.PutUint64(b[0:], l.Index)
	binary.BigEndian.PutUint64(b[8:], l.Term)
	b[16] = byte(l.Type)
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, l.Data)
}

// sealLogs returns copies of entries with their checksums in Extensions.
func sealLogs(logs []*hraft.Log) []*hraft.Log {
	copies := make([]hraft.Log, len(logs))
	sums := make([]byte, 0, 4*len(logs))
	sealed := make([]*hraft.Log, len(logs))
	for i, l := range logs {
		copies[i] = *l
		sums = binary.BigEndian.AppendUint32(sums, logSum(l))
		copies[i].Extensions = sums[4*i : 4*i+4 : 4*i+4]
		sealed[i] = &copies[i]
	}
	return sealed
}

// unseallog checks an entry against its checksum in Extensions, which nothing else uses, and
// removes it.
func unseallog(index uint64, l *hraft.Log) error {
	sum := l.Extensions
	if len(sum) != 4 || l.Index != index || binary.BigEndian.Uint32(sum) != logSum(l) {
		return fmt.Errorf("raft log: %w: wrong checksum of entry %d", pages.ErrDamaged, index)
	}
	l.Extensions = nil
	return nil
}

func (s *logStore) StoreLog(l *hraft.Log) error { return s.StoreLogs([]*hraft.Log{l}) }

// storeAtOnce bounds the bytes that raft-wal gets in one batch, except for a single larger
// entry. It copies a batch to a buffer that it keeps with each of its files for as long as that is
// open, sealed ones too: batches of 8 MiB came to 124 MB.
const storeAtOnce = 2<<20 - 64<<10

// StoreLogs implements hraft.LogStore. The entries are durable when it returns
// (I1); after a crash in the middle the first ones may be.
func (s *logStore) StoreLogs(logs []*hraft.Log) error {
	for sealed := sealLogs(logs); len(sealed) > 0; {
		n, size := 1, len(sealed[0].Data)
		for n < len(sealed) && size+len(sealed[n].Data) <= storeAtOnce {
			size += len(sealed[n].Data)
			n++
		}
		if err := s.write("store entries", func() error {
			s.walMu.RLock()
			defer s.walMu.RUnlock()
			return s.wal.StoreLogs(sealed[:n])
		}); err != nil {
			return err
		}
		sealed = sealed[n:]
	}
	s.cache.put(logs)
	return nil
}

// delivered returns the newest entry up to index that the FSM receives. hashicorp/raft keeps
// its no-ops from it: a caller that waited for one would wait for the next command.
func (s *logStore) delivered(index uint64) uint64 {
	var l hraft.Log
	for s.GetLog(index, &l) == nil &&
		l.Type != hraft.LogCommand && l.Type != hraft.LogConfiguration {
		index--
	}
	return index
}

func (s *logStore) DeleteRange(from, to uint64) error {
	first, last, err := s.bounds()
	if err != nil {
		return err
	}
	// A deletion from the front that leaves something is a compaction: it stops at the floor. One
	// at the end is a conflict with the leader, and must be done as it is asked.
	if from <= first && to < last {
		to = min(to, s.floor())
		if to < from {
			return nil
		}
	}
	// A leader that has something else where entries were committed has another history.
	if from > first && s.committed != nil && from <= s.committed() {
		s.disk.die(fmt.Errorf("%w: %d to %d, of which those up to %d were committed here",
			ErrAhead, from, last, min(last, s.committed())))
		return watchdog.ErrBroken
	}
	s.cache.forget(to)
	return s.write(fmt.Sprintf("delete entries %d to %d", from, to), func() error {
		s.walMu.RLock()
		defer s.walMu.RUnlock()
		return s.wal.DeleteRange(from, to)
	})
}

func (s *logStore) close() error {
	s.walMu.Lock()
	defer s.walMu.Unlock()
	return s.wal.Close()
}

// write runs a write of the log's files.
func (s *logStore) write(what string, do func() error) error {
	return s.disk.Write("raft log: "+what, s.o.Dir, func() error {
		s.o.BeforeStore()
		return do()
	})
}

// logCache keeps the newest entries of the Raft log in memory: hashicorp/raft reads again what
// it has just stored, a leader for each follower and a follower when it applies it. Its zero
// value is ready.
type logCache struct {
	mu    sync.RWMutex
	ring  [cachedEntries]hraft.Log // each at its index modulo the length
	bytes int                      // of their data
}

const (
	cachedEntries = 256
	// cachedBytes is how far followers may be behind without a read of the disk: what is in
	// flight, twice.
	cachedBytes = 16 << 20
)

// get copies an entry to l. Its data is shared.
func (c *logCache) get(index uint64, l *hraft.Log) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := &c.ring[index%cachedEntries]
	if index == 0 || e.Index != index {
		return false
	}
	*l = *e
	return true
}

// put adds what was stored, in place of the oldest entries.
func (c *logCache) put(logs []*hraft.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		c.set(l.Index, *l)
		for i := l.Index + 1; c.bytes > cachedBytes && i < l.Index+cachedEntries; i++ {
			c.set(i, hraft.Log{})
		}
	}
}

// set puts an entry at the place of an index.
func (c *logCache) set(index uint64, l hraft.Log) {
	at := &c.ring[index%cachedEntries]
	c.bytes += len(l.Data) - len(at.Data)
	*at = l
}

// forget drops what is about to be deleted: the front, or everything.
func (c *logCache) forget(to uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ring {
		if c.ring[i].Index <= to {
			c.set(uint64(i), hraft.Log{})
		}
	}
}
