package raft

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/qlogd/qlogd/internal/hlog"
	"github.com/qlogd/qlogd/internal/pages"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// The files in Options.Dir.
const (
	votesFile = "stable.db"
	metaFile  = metadb.FileName // raft-wal's, next to its segments
)

// stores are what hashicorp/raft keeps on disk.
type stores struct {
	disk  *disk
	kv    KV
	votes *votes
	log   *logStore
	snaps *snapshots
	known configuration // the newest on disk, committed or not: check looks in the log too
}

// disk is that of the stores, watched: its errors end the process. die does not return where
// hashicorp/raft runs, which would panic at the error.
//
// A disk that hangs under the leader would freeze the cluster: hashicorp/raft's main loop is
// blocked in the write, and its heartbeats continue, so that nobody else is elected (#503, #614).
// So while it is stalled, this node sends nothing (transport.append).
type disk struct {
	watchdog.Disk
	die func(error)
}

func newDisk(o Options, fatal, die func(error)) *disk {
	return &disk{watchdog.Disk{Timeout: o.DiskTimeout, Logger: o.Logger, Fatal: fatal}, die}
}

// unwatched is for a store that no replica runs on: every error is returned.
func unwatched(o Options) *disk { return newDisk(o, func(error) {}, func(error) {}) }

func openStores(o Options, d *disk) (_ *stores, err error) {
	s := &stores{disk: d}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	hadLog, err := prepareDirs(o)
	if err != nil {
		return nil, err
	}
	if s.snaps, err = openSnapshots(o); err != nil {
		return nil, err
	}
	newest := s.snaps.Newest()
	if newest.Index > 0 {
		s.known = configurationOf(newest)
	}
	if err := s.openVotes(o); err != nil {
		return nil, err
	}
	term := s.votes.current.Load()
	head, _ := o.Machine.Tip()
	beside := head > 0 || newest.Index > 0
	// Before a new log is created in place of a lost one. The log is created before the first
	// term is stored, so a crash never leaves a term without a log.
	if !hadLog && (term > 0 || beside) {
		if err := s.lost(o, head, "has no log ("+metaFile+")"); err != nil {
			return nil, err
		}
		// Nothing else says which of its files count.
		if err := keepSegments(filerOf(o), nil); err != nil {
			return nil, err
		}
	}
	if s.log, err = openLog(o, s.disk, s.snaps.floor); err != nil {
		return nil, err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return nil, err
	}
	// The first term is stored before the first entry.
	if term == 0 && (last > 0 || beside) {
		if err := s.lost(o, head, "has no term ("+votesFile+")"); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// prepareDirs creates the directories, and reports whether there is a Raft log on disk.
func prepareDirs(o Options) (hasLog bool, err error) {
	if err := errors.Join(o.FS.MkdirAll(o.Dir), o.FS.MkdirAll(o.CheckpointDir)); err != nil {
		return false, err
	}
	_, err = o.FS.Stat(path.Join(o.Dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (s *stores) openVotes(o Options) error {
	name := path.Join(o.Dir, votesFile)
	return opening(name, func() (err error) {
		if o.OpenKV != nil {
			s.kv, err = o.OpenKV(name)
		} else {
			s.kv, err = openBolt(name)
		}
		if err != nil {
			return err
		}
		s.votes, err = readVotes(s.kv, name, s.disk)
		return err
	})
}

// ErrLostStore is returned if the Raft store is gone while the event log or checkpoints are there:
// a new one would assign indexes twice, and in a cluster vote twice.
var ErrLostStore = errors.New("the Raft store is lost")

// ErrRolledBack is returned if the directory was restored from an old copy or has lost a part,
// while others hold everything: it can continue in a new incarnation, which has promised nothing
// (I16).
var ErrRolledBack = errors.New(
	"the data directory is older than what this node promised to the others")

// lost returns how to treat a store that is lost in part. nil: the incarnation is new; the
// others bring it up to date, and what the event log holds already is skipped.
func (s *stores) lost(o Options, head uint64, what string) error {
	self := o.self().serverID()
	member, others := o.Joined, len(o.Contacts) > 0
	for _, c := range []configuration{s.known, o.first()} {
		_, in := c.find(self)
		voters, _ := c.otherVoters(self)
		member, others = member || in, others || len(voters) > 0
	}
	found := fmt.Sprintf("%s %s, but the event log ends at index %d, "+
		"or checkpoints or the other half of the store are there", o.Dir, what, head)
	switch {
	case !others:
		return fmt.Errorf("%w: %s; put the whole directory back, "+
			"or make a new one with qlogd replay --into", ErrLostStore, found)
	case member:
		return fmt.Errorf("%w: %s", ErrRolledBack, found)
	}
	o.Logger.Warn("incomplete Raft store; the other nodes bring this new incarnation up to date",
		"what", what, "head", head)
	return nil
}

func configurationOf(m checkpoint.Meta) configuration {
	return configuration{m.ConfigurationIndex, hraft.DecodeConfiguration(m.Configuration).Servers}
}

// opening runs do, which opens a file of the store, or a directory of them. What fails there for
// another reason than the disk is damage.
func opening(file string, do func() error) error {
	err := pages.Try(do)
	if err == nil {
		return nil
	}
	disk := errors.As(err, new(syscall.Errno)) && !errors.Is(err, fs.ErrNotExist)
	if !disk && !errors.Is(err, berrors.ErrTimeout) && !errors.Is(err, pages.ErrDamaged) {
		err = fmt.Errorf("%w: %w", pages.ErrDamaged, err)
	}
	return fmt.Errorf("open %s: %w", file, err)
}

// openLog opens the Raft log.
func openLog(o Options, d *disk, floor func() uint64) (*logStore, error) {
	s := &logStore{o: &o, disk: d, filer: filerOf(o), floor: floor}
	err := opening(path.Join(o.Dir, metaFile), func() (err error) {
		s.wal, err = s.open()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("raft log: %w", err)
	}
	return s, nil
}

func filerOf(o Options) *segment.Filer { return segment.NewFiler(o.Dir, walFS{o.FS}) }

// open repairs and opens the Raft log's files.
func (s *logStore) open() (w *wal.WAL, err error) {
	var meta waltypes.MetaStore = &metadb.BoltMetaDB{}
	file := path.Join(s.o.Dir, metaFile)
	if s.o.OpenKV != nil {
		if meta, err = s.o.OpenKV(file); err != nil {
			return nil, err
		}
	}
	err = repairLog(s.o.Dir, meta, s.filer)
	if err == nil && s.o.OpenKV == nil {
		err = os.Chmod(file, 0o600) // raft-wal creates it for everybody to read
	}
	if err == nil {
		w, err = wal.Open(s.o.Dir,
			wal.WithSegmentFiler(s.filer),
			wal.WithMetaStore(watchedMeta{meta, s.disk, file}),
			wal.WithSegmentSize(s.o.SegmentBytes),
			wal.WithLogger(hlog.New(s.o.Logger, "raft-wal")),
		)
	}
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	return w, nil
}

// watchedMeta is raft-wal's list of segments. A goroutine of raft-wal changes it too, where a full
// segment is followed by the next.
type watchedMeta struct {
	waltypes.MetaStore
	disk *disk
	file string
}

func (m watchedMeta) CommitState(s waltypes.PersistentState) error {
	return m.disk.Write("raft log: write the list of segments", m.file, func() error {
		return m.MetaStore.CommitState(s)
	})
}

// close closes what is open.
func (s *stores) close() (err error) {
	if s.log != nil {
		err = s.log.close()
	}
	if s.kv != nil {
		err = errors.Join(err, s.kv.Close())
	}
	return err
}

// Held returns the first entry that a node's Raft log holds, 0 for none, for the event log's
// recovery: that is opened before Raft, and a bad last block is repaired only where Raft will
// apply its entry again. Of the options Dir, FS and OpenKV are used. The store must not be open.
func Held(o Options) (first uint64, err error) {
	o = o.withDefaults()
	o.CheckpointDir = o.Dir
	if hasLog, err := prepareDirs(o); err != nil || !hasLog {
		return 0, err
	}
	log, err := openLog(o, unwatched(o), nil)
	if err != nil {
		return 0, err
	}
	defer log.close()
	return log.FirstIndex()
}

// Seed writes a Raft store and its first checkpoint into a new data directory, so that Open
// continues there as the one voter of a new cluster: replay --into. meta says where the event log,
// which must be durable, ends (HeadIndex, Chain, Clock, Digest); the rest of it is set here. Of the
// options the node's identity, Dir, CheckpointDir, FS and OpenKV are used.
func Seed(o Options, meta checkpoint.Meta, body io.WriterTo) (err error) {
	o = o.withDefaults()
	if meta.HeadIndex == 0 {
		return errors.New("seed: an empty log needs no store")
	}
	if hasLog, err := prepareDirs(o); err != nil {
		return err
	} else if hasLog {
		return fmt.Errorf("seed: %s holds a Raft log already", o.Dir)
	}
	s := &stores{disk: unwatched(o)}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.openVotes(o); err != nil {
		return err
	}
	if s.log, err = openLog(o, unwatched(o), nil); err != nil {
		return err
	}
	// Where it is reached is corrected at its first start.
	sole := hraft.Configuration{Servers: []hraft.Server{o.self().voter()}}
	// As if one leader had written the log up to its head.
	meta.Index, meta.Term = meta.HeadIndex, 1
	meta.SnapshotVersion = 1
	meta.Configuration, meta.ConfigurationIndex = hraft.EncodeConfiguration(sole), meta.HeadIndex
	meta.ClusterID = o.ClusterID
	if err := checkpoint.Write(o.FS, o.CheckpointDir, meta, body); err != nil {
		return err
	}
	// The term last: without it the directory is refused as a lost store.
	return s.votes.SetUint64([]byte(keyCurrentTerm), 1)
}

// check compares the stores with each other and with the event log before Raft starts, repairs
// what a crash can leave, and refuses what it cannot.
func (s *stores) check(o Options) error {
	first, last, err := s.log.bounds()
	if err != nil {
		return err
	}
	head, chain := o.Machine.Tip()
	newest := s.snaps.Newest()
	if newest.Index > 0 {
		switch {
		case newest.ClusterID != o.ClusterID:
			return fmt.Errorf("raft: checkpoint %s is of cluster %q, this node is of %q",
				newest.Name(), newest.ClusterID, o.ClusterID)
		// The event log was synced, or installed, before the checkpoint.
		case head < newest.HeadIndex:
			return fmt.Errorf("raft: the event log ends at index %d, below checkpoint %s of "+
				"index %d: its end is lost", head, newest.Name(), newest.HeadIndex)
		case head == newest.HeadIndex && chain != newest.Chain:
			return fmt.Errorf("raft: the event log has chain %x at index %d, checkpoint %s has %x",
				chain, head, newest.Name(), newest.Chain)
		}
		why, err := s.misaligned(newest, first, last)
		if err != nil {
			return err
		}
		if why != "" {
			o.Logger.Warn("discarding the Raft log", "why", why,
				"first", first, "last", last, "checkpoint", newest.Name())
			if err := s.log.DeleteRange(first, last); err != nil {
				return err
			}
			first, last = 0, 0
		}
	}
	if last > 0 && first > newest.Index+1 {
		return fmt.Errorf("raft: the Raft log begins at index %d, but the newest usable "+
			"checkpoint ends at %d: the entries between are lost", first, newest.Index)
	}
	if err := s.verify(max(first, newest.Index+1), last); err != nil {
		return err
	}
	// Every applied entry was synced in the Raft log first (I1): an event log that is ahead of
	// it shows that the Raft log lost its end.
	if known := max(last, newest.Index); head > known {
		return s.lost(o, head, fmt.Sprintf("only knows entries up to index %d", known))
	}
	return nil
}

// misaligned returns why a Raft log does not lead up to the newest checkpoint, "" if it does.
func (s *stores) misaligned(newest checkpoint.Meta, first, last uint64) (why string, err error) {
	switch {
	case last == 0 || first > newest.Index:
		return "", nil
	case last < newest.Index:
		// raft-wal would refuse the checkpoint's next index forever.
		return "it ends below the newest checkpoint", nil
	}
	var l hraft.Log
	if err := s.log.GetLog(newest.Index, &l); err != nil || l.Term == newest.Term {
		return "", err
	}
	// The entries after one that was never committed were not committed either.
	return fmt.Sprintf("its entry %d is of term %d, the checkpoint's of term %d",
		newest.Index, l.Term, newest.Term), nil
}

// verify reads the entries that Raft is about to apply. hashicorp/raft would panic at the first
// bad one; here it is an error with its index.
func (s *stores) verify(from, to uint64) error {
	var term uint64
	for i := from; i <= to; i++ {
		var l hraft.Log
		if err := s.log.GetLog(i, &l); err != nil {
			return err
		}
		if l.Term < term {
			return fmt.Errorf("raft log: entry %d is of term %d, the one before it of term %d",
				i, l.Term, term)
		}
		term = l.Term
		if l.Type == hraft.LogConfiguration {
			s.known = configuration{i, hraft.DecodeConfiguration(l.Data).Servers}
		}
	}
	return nil
}

// bootstrap writes the first configuration of a new cluster, if there is none on disk: the same
// bytes on all of its first nodes. A crash in between leaves a first term and an empty log, which
// hashicorp/raft's own BootstrapCluster would refuse forever.
func (s *stores) bootstrap(o Options) error {
	if len(o.Initial) == 0 {
		return nil
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return err
	}
	if s.snaps.Newest().Index > 0 || last > 0 {
		return nil
	}
	if term := s.votes.current.Load(); term > 1 {
		return fmt.Errorf("%w: term %d is known, but the Raft log is empty", ErrLostStore, term)
	}
	// The term first: a log with an entry and no term is a lost store.
	if err := s.votes.SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		return err
	}
	return s.log.StoreLog(&hraft.Log{
		Index: 1, Term: 1, Type: hraft.LogConfiguration,
		Data: hraft.EncodeConfiguration(hraft.Configuration{Servers: o.first().Servers}),
		// AppendedAt stays zero: it would differ from node to node.
	})
}
