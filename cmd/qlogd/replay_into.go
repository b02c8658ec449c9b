package main

import (
	"context"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/replay"
)

type intoLine struct {
	Into intoBody `json:"into"`
}

type intoBody struct {
	DataDir   string    `json:"data_dir"`
	ClusterID string    `json:"cluster_id"`
	At        wire.Time `json:"at"`
	Index     uint64    `json:"index"`
	ChainHash string    `json:"chain_hash"`
}

// copyInto writes a new data directory that holds the state as of --to.
func (r *replayer) copyInto(ctx context.Context, d *replay.Dir) error {
	bar := r.progress("copying", true)
	var copied int64
	node, err := d.Into(ctx, r.to, r.into, seed, func(done, total int64) {
		copied = done
		bar.set(done, total)
	})
	bar.done()
	if err != nil {
		return err
	}
	f := node.Fork
	if r.output == "json" {
		return r.wire(intoLine{intoBody{r.into, node.ClusterID, wire.TimeOf(f.At), f.Index, f.ChainHash}})
	}
	fmt.Fprintf(r.stdout, "%s holds the state at %s (index:%d, chain %.16s…), %s of log, as cluster %s\n",
		r.into, wire.TimeOf(f.At), f.Index, f.ChainHash, humanize.IBytes(uint64(copied)), node.ClusterID)
	fmt.Fprintf(r.stdout, "serve it beside the other node: qlogd serve --data-dir %s --http-addr 127.0.0.1:8070 --raft-addr 127.0.0.1:8071\n", r.into)
	return nil
}

// seed gives a new data directory its Raft store: replay does not know Raft.
func seed(dir string, node *datadir.Node, meta checkpoint.Meta, body io.WriterTo) error {
	return raft.Seed(raft.Options{
		NodeID: node.NodeID, ClusterID: node.ClusterID, Incarnation: node.Incarnation, FS: vfs.OS{},
		Dir: datadir.Path(dir, datadir.RaftDir), CheckpointDir: datadir.Path(dir, datadir.CheckpointDir),
	}, meta, body)
}
