package raft

import (
	"errors"
	"fmt"
	"io"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/checkpoint"
)

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
	sole := []Member{{ID: o.NodeID, Incarnation: o.Incarnation, RaftAddr: o.NodeID, Voter: true}}
	// As if one leader had brought the log up to its head and left it there.
	meta.Index, meta.Term = meta.HeadIndex, 1
	meta.SnapshotVersion = 1
	meta.Configuration, meta.ConfigurationIndex = hraft.EncodeConfiguration(configurationOf(sole)), meta.HeadIndex
	meta.ClusterID = o.ClusterID
	if err := checkpoint.Write(o.FS, o.CheckpointDir, meta, body); err != nil {
		return err
	}
	// The term last: a directory that is half made is refused as a lost store.
	return (&votes{kv: s.kv, die: noFaults.die}).SetUint64([]byte(keyCurrentTerm), 1)
}
