package raft

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"
	"strings"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/log/checkpoint"
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

// ErrRolledBack is why a replica does not start, or is out of its cluster, whose directory was
// restored from an old copy or has lost a part, while others in the cluster hold everything: the
// directory can continue as another member, in a new incarnation, which has promised nothing (I16).
var ErrRolledBack = errors.New("the data directory is older than what this node promised to the others")

// lost returns what is to be done about a store that is lost in part. Nothing,
// where the incarnation is new: the others bring it up to date, and what the
// event log holds already is skipped.
func (s *stores) lost(o Options, head uint64, what string) error {
	self := serverID(o.NodeID, o.Incarnation)
	newest, _ := s.snaps.newest()
	confs := []configuration{s.known, o.first()}
	if len(newest.Configuration) > 0 {
		confs = append(confs, configuration{Servers: hraft.DecodeConfiguration(newest.Configuration).Servers})
	}
	member, others := o.Joined, len(o.Contacts) > 0
	for _, c := range confs {
		_, in := c.find(self)
		voters, _ := c.otherVoters(self)
		member, others = member || in, others || len(voters) > 0
	}
	switch {
	case !others || o.Net == nil:
		return fmt.Errorf("%w: %s %s, but the event log ends at index %d, or checkpoints or the other half of the store are there; "+
			"put the whole directory back, or make a new one with qlogd replay --into", ErrLostStore, o.Dir, what, head)
	case member:
		return fmt.Errorf("%w: %s %s, but the event log ends at index %d, or checkpoints or the other half of the store are there", ErrRolledBack, o.Dir, what, head)
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
		wal.WithMetricsCollector(walMetrics{o.Metrics}),
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

// Seed writes a Raft store and its first checkpoint into a new data directory,
// so that Open goes on there as the one voter of a new cluster: replay --into.
// Of the options NodeID, ClusterID, Dir, CheckpointDir, FS, Incarnation and OpenKV
// are used. meta says where the event log stands (HeadIndex, Chain, Clock,
// Digest); the rest of it is set here. The event log must be durable before.
func Seed(o Options, meta checkpoint.Meta, body io.WriterTo) (err error) {
	o.Machine = noMachine{}
	if o, err = o.withDefaults(); err != nil {
		return err
	}
	if meta.HeadIndex == 0 {
		return errors.New("seed: an empty log needs no store: bootstrap makes one")
	}
	for _, dir := range []string{o.Dir, o.CheckpointDir} {
		if err := o.FS.MkdirAll(dir); err != nil {
			return fmt.Errorf("seed: %w", err)
		}
	}
	if ok, err := logPresent(o); err != nil {
		return err
	} else if ok {
		return fmt.Errorf("seed: %s holds a Raft log already", o.Dir)
	}
	s := &stores{}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.kv, err = openKV(o, votesFile); err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	if s.log, err = openLog(o, noFaults, func() uint64 { return 0 }); err != nil {
		return err
	}
	// Where it is reached is corrected at its first start.
	sole := hraft.Configuration{Servers: []hraft.Server{o.self().voter()}}
	// As if one leader had brought the log up to its head and left it there.
	meta.Index, meta.Term = meta.HeadIndex, 1
	meta.SnapshotVersion = 1
	meta.Configuration, meta.ConfigurationIndex = hraft.EncodeConfiguration(sole), meta.HeadIndex
	meta.ClusterID = o.ClusterID
	if err := checkpoint.Write(o.FS, o.CheckpointDir, meta, body); err != nil {
		return err
	}
	// The term last: a directory that is half made is refused as a lost store.
	return (&votes{kv: s.kv, die: noFaults.die}).SetUint64([]byte(keyCurrentTerm), 1)
}

// check compares the stores with each other and with the event log before Raft
// starts, heals what a crash can leave, and refuses what it cannot.
func (s *stores) check(o Options) error {
	first, err := s.log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return err
	}
	newest, ok := s.snaps.newest()
	if ok {
		if newest.ClusterID != o.ClusterID {
			return fmt.Errorf("raft: checkpoint %s is of cluster %q, this node is of %q", newest.Name(), newest.ClusterID, o.ClusterID)
		}
		// A checkpoint of this node's own is never ahead of its event log, which was synced
		// before, and one that was fetched was installed after the segments before it.
		if head, chain := o.Machine.Head(); head < newest.HeadIndex {
			return fmt.Errorf("raft: the event log ends at index %d, below checkpoint %s of index %d: its end is lost",
				head, newest.Name(), newest.HeadIndex)
		} else if head == newest.HeadIndex && chain != newest.Chain {
			return fmt.Errorf("raft: the event log has chain %x at index %d, checkpoint %s has %x",
				chain, head, newest.Name(), newest.Chain)
		}
		if last, err = s.alignLog(o, newest, first, last); err != nil {
			return err
		}
		if last == 0 {
			first = 0
		}
	}
	if last > 0 && first > newest.Index+1 {
		return fmt.Errorf("raft: the Raft log begins at index %d, but the newest usable checkpoint ends at %d: what lies between is lost", first, newest.Index)
	}
	// Every applied entry was synced in the Raft log first: an event log that
	// is ahead of it shows that the Raft log lost its end.
	if ok {
		s.known = configuration{newest.ConfigurationIndex, hraft.DecodeConfiguration(newest.Configuration).Servers}
	}
	if err := s.verify(max(first, newest.Index+1), last); err != nil {
		return err
	}
	if head, _ := o.Machine.Head(); head > max(last, newest.Index) {
		return s.lost(o, head, fmt.Sprintf("only knows entries up to index %d", max(last, newest.Index)))
	}
	return nil
}

// alignLog empties a Raft log that does not lead up to the newest snapshot.
func (s *stores) alignLog(o Options, newest checkpoint.Meta, first, last uint64) (uint64, error) {
	if last == 0 {
		return 0, nil
	}
	why := ""
	switch {
	case last < newest.Index:
		// raft-wal would refuse the snapshot's next index for ever.
		why = "it ends below the newest checkpoint"
	case first <= newest.Index:
		var l hraft.Log
		if err := s.log.GetLog(newest.Index, &l); err != nil {
			return 0, err
		}
		if l.Term == newest.Term {
			return last, nil
		}
		// What follows an entry that was never committed was not either.
		why = fmt.Sprintf("its entry %d is of term %d, the checkpoint's of term %d", newest.Index, l.Term, newest.Term)
	default:
		return last, nil
	}
	o.Logger.Warn("emptying the Raft log: "+why, "first", first, "last", last, "checkpoint", newest.Name())
	return 0, s.log.DeleteRange(first, last)
}

// verify reads the entries that Raft is about to apply. hashicorp/raft would
// panic at the first bad one; here it is an error with its index.
func (s *stores) verify(from, to uint64) error {
	var term uint64
	for i := from; i <= to; i++ {
		var l hraft.Log
		if err := s.log.GetLog(i, &l); err != nil {
			return err
		}
		if l.Term < term {
			return fmt.Errorf("raft log: entry %d is of term %d, the one before it of term %d", i, l.Term, term)
		}
		term = l.Term
		if l.Type == hraft.LogConfiguration {
			s.known = configuration{i, hraft.DecodeConfiguration(l.Data).Servers}
		}
	}
	return nil
}

// bootstrap writes the first configuration of a new cluster, where there is none
// on disk. All of its first nodes write the same bytes, so that their logs agree
// from the first entry on. A crash halfway left a first term and an empty log:
// hashicorp/raft's own BootstrapCluster would then refuse for ever, and nobody
// could be elected.
func (s *stores) bootstrap(o Options) error {
	if len(o.Initial) == 0 {
		return nil
	}
	conf, self := o.first(), o.self()
	if _, in := conf.find(self.serverID()); !in {
		return fmt.Errorf("the cluster's first configuration does not have this node, %s", self.serverID())
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return err
	}
	if _, ok := s.snaps.newest(); ok || last > 0 {
		return nil
	}
	term, err := s.votes.term()
	if err != nil {
		return err
	}
	if term > 1 {
		return fmt.Errorf("%w: term %d is known, but the Raft log is empty", ErrLostStore, term)
	}
	// The term first: a log with an entry and no term is a lost store.
	if err := s.votes.SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		return err
	}
	return s.log.StoreLog(&hraft.Log{
		Index: 1, Term: 1, Type: hraft.LogConfiguration,
		Data: hraft.EncodeConfiguration(hraft.Configuration{Servers: conf.Servers}),
		// AppendedAt stays zero: it would differ from node to node.
	})
}
