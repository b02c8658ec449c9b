package raft

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"strings"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"
)

// The files in Options.Dir.
const (
	votesFile = "stable.db"
	metaFile  = metadb.FileName // raft-wal's, next to its segments
)

// stores are what Raft remembers by.
type stores struct {
	kv    KV
	votes *votes
	log   *logStore
	snaps *snapshots
	// known is the newest configuration on disk, committed or not; set by check.
	known configuration
}

// faults are told what ends the process. die does not return where hashicorp/raft
// runs: it would panic at the error.
type faults struct{ fatal, die func(error) }

// noFaults are of a store that nobody runs on: every error is returned.
var noFaults = faults{func(error) {}, func(error) {}}

func openStores(o Options, f faults) (_ *stores, err error) {
	for _, dir := range []string{o.Dir, o.CheckpointDir} {
		if err := o.FS.MkdirAll(dir); err != nil {
			return nil, fmt.Errorf("raft: %w", err)
		}
	}
	s := &stores{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	hadLog, err := logPresent(o)
	if err != nil {
		return nil, err
	}
	if s.snaps, err = openSnapshots(o); err != nil {
		return nil, err
	}
	// The votes are opened first: bbolt then times out on the lock of another
	// process, where raft-wal would wait for ever.
	var term uint64
	if err := sound(join(o.Dir, votesFile), func() (err error) {
		if s.kv, err = openKV(o, votesFile); err != nil {
			return err
		}
		s.votes = &votes{kv: s.kv, die: f.die}
		term, err = s.votes.term()
		s.votes.current.Store(term)
		return err
	}); err != nil {
		return nil, fmt.Errorf("raft: %w", err)
	}
	head, _ := o.Machine.Head()
	_, haveCheckpoint := s.snaps.newest()
	beside := head > 0 || haveCheckpoint
	// Before a new log is made in place of a lost one. The log is made before
	// the first term is stored, so a term without a log is no crash.
	if !hadLog && (term > 0 || beside) {
		if err := s.lost(o, head, "has no log ("+metaFile+")"); err != nil {
			return nil, err
		}
		if err := dropSegments(o); err != nil {
			return nil, err
		}
	}
	if s.log, err = openLog(o, f, s.snaps.floor); err != nil {
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

// dropSegments removes what is left of a log whose list of segments is lost:
// nothing else says which of them count.
func dropSegments(o Options) error {
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".wal") {
			if err := o.FS.Remove(join(o.Dir, name)); err != nil {
				return fmt.Errorf("raft: %w", err)
			}
		}
	}
	return nil
}

// ErrLostStore is why a replica does not start whose Raft store is gone while
// its event log or its checkpoints are there. It must not start as new: it would
// give out indexes again, and in a cluster vote again.
var ErrLostStore = errors.New("the Raft store is lost")

// ErrWentBack is why a replica does not start that is in the same trouble, but
// has others in its cluster that hold everything: its directory can go on as
// another member, in a new incarnation, which has promised nothing (I16).
var ErrWentBack = errors.New("the Raft store has lost what this node promised to the others")

// lost returns what is to be done about a store that is lost in part. Nothing,
// where the incarnation is new: the others bring it up to date, and what the
// event log holds already is skipped.
func (s *stores) lost(o Options, head uint64, what string) error {
	self := serverID(o.NodeID, o.Incarnation)
	newest, _ := s.snaps.newest()
	confs := []configuration{s.known, {Servers: configurationOf(o.Initial).Servers}}
	if len(newest.Configuration) > 0 {
		confs = append(confs, configuration{Servers: hraft.DecodeConfiguration(newest.Configuration).Servers})
	}
	member, others := o.Joined, len(o.Contacts) > 0
	if joined, err := s.votes.hasJoined(self); err != nil {
		return err
	} else if joined {
		member = true
	}
	for _, c := range confs {
		_, in := c.find(self)
		voters, _ := c.jury(self)
		member, others = member || in, others || len(voters) > 0
	}
	switch {
	case !others || o.Net == nil:
		return fmt.Errorf("%w: %s %s, but the event log ends at index %d, or checkpoints or the other half of the store are there; "+
			"put the whole directory back, or make a new one with qlogd replay --into", ErrLostStore, o.Dir, what, head)
	case member:
		return fmt.Errorf("%w: %s %s, but the event log ends at index %d, or checkpoints or the other half of the store are there", ErrWentBack, o.Dir, what, head)
	}
	o.Logger.Warn("the Raft store is not whole; as a new incarnation this node is brought up to date by the others", "what", what, "head", head)
	return nil
}

// logPresent tells whether there is a Raft log on disk.
func logPresent(o Options) (bool, error) {
	_, err := o.FS.Stat(join(o.Dir, metaFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("raft: %w", err)
	}
	return err == nil, nil
}

func openKV(o Options, name string) (KV, error) {
	if o.OpenKV != nil {
		return o.OpenKV(join(o.Dir, name))
	}
	return openBolt(join(o.Dir, name))
}

// sound runs what opens a bbolt file. bbolt trusts its pages: where they are
// damaged it panics, and reads past the end of a file that was cut.
func sound(file string, open func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s is damaged (%v): put the whole data directory back, or make a new one with qlogd replay --into", file, v)
		}
	}()
	return open()
}

// openLog opens the Raft log.
func openLog(o Options, f faults, floor func() uint64) (s *logStore, err error) {
	err = sound(join(o.Dir, metaFile), func() error {
		s, err = openWAL(o, f, floor)
		return err
	})
	return s, err
}

func openWAL(o Options, f faults, floor func() uint64) (*logStore, error) {
	files := walFS{o.FS}
	s := &logStore{
		dir: o.Dir, list: files.ListDir, open: func() (*wal.WAL, error) { return openFiles(o, files) },
		deadline: o.StoreDeadline, fatal: f.fatal, die: f.die, floor: floor, before: o.BeforeStore,
	}
	var err error
	if s.wal, err = s.open(); err != nil {
		return nil, fmt.Errorf("open Raft log in %s: %w", o.Dir, err)
	}
	return s, nil
}

// openFiles mends and opens the Raft log's files.
func openFiles(o Options, files walFS) (*wal.WAL, error) {
	var meta waltypes.MetaStore = &metadb.BoltMetaDB{}
	if o.OpenKV != nil {
		kv, err := o.OpenKV(join(o.Dir, metaFile))
		if err != nil {
			return nil, err
		}
		meta = kvMeta{kv}
	}
	filer := segment.NewFiler(o.Dir, files)
	if err := repairLog(o.Dir, meta, filer); err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	opts := []func(*wal.WAL){
		wal.WithSegmentFiler(filer),
		wal.WithMetaStore(meta),
		wal.WithSegmentSize(o.SegmentBytes),
		wal.WithLogger(hlog(o.Logger, "raft-wal")),
		wal.WithMetricsCollector(walMetrics{o.Metrics, newNamer()}),
	}
	// Its type of options has no name outside.
	w, err := wal.Open(o.Dir, func(w *wal.WAL) {
		for _, opt := range opts {
			opt(w)
		}
	})
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	return w, nil
}

// close closes what is open; the first error counts.
func (s *stores) close() error {
	var errs []error
	if s.log != nil {
		errs = append(errs, s.log.close())
	}
	if s.kv != nil {
		errs = append(errs, s.kv.Close())
	}
	return errors.Join(errs...)
}

// Held tells which entries a node's Raft log holds (0, 0: none), for the event
// log's recovery: it is opened before Raft, and a bad last block is healed only
// where Raft will apply its entry again. Of the options Dir, FS and OpenKV are
// used. Nobody else may have the store open.
func Held(o Options) (first, last uint64, err error) {
	o.NodeID, o.CheckpointDir = "held", o.Dir
	o.Machine = noMachine{}
	if o, err = o.withDefaults(); err != nil {
		return 0, 0, err
	}
	if ok, err := logPresent(o); err != nil || !ok {
		return 0, 0, err
	}
	if o.OpenKV == nil {
		// raft-wal waits for ever for the lock of its bbolt file.
		var kv KV
		if err := sound(join(o.Dir, votesFile), func() (err error) {
			kv, err = openKV(o, votesFile)
			return err
		}); err != nil {
			return 0, 0, fmt.Errorf("raft: %w", err)
		}
		defer kv.Close()
	}
	log, err := openLog(o, noFaults, func() uint64 { return 0 })
	if err != nil {
		return 0, 0, err
	}
	defer log.close()
	if first, err = log.FirstIndex(); err == nil {
		last, err = log.LastIndex()
	}
	return first, last, err
}

type noMachine struct{ Machine }
