package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/replay"
)

// verified is the line of --verify with --output json.
type verified struct {
	Verify verifyBody `json:"verify"`
}

type verifyBody struct {
	OK          bool   `json:"ok"`
	Index       uint64 `json:"index"`
	ChainHash   string `json:"chain_hash"`
	First       uint64 `json:"first_index"`
	Segments    int    `json:"segments"`
	Blocks      int64  `json:"blocks"`
	Events      int64  `json:"events"`
	Erased      int64  `json:"erased"`
	Bytes       int64  `json:"bytes"`
	Checkpoints int    `json:"checkpoints"`
	TornBytes   int64  `json:"torn_bytes,omitzero"`
	// Of a difference: the first block that is wrong, and what.
	WrongIndex uint64 `json:"wrong_index,omitzero"`
	Difference string `json:"difference,omitzero"`
}

// verifyDir checks the whole of a data directory.
func (r *replayer) verifyDir(ctx context.Context) error {
	bar := r.progress("verifying", true)
	report, err := replay.VerifyAs(ctx, r.log.fs, r.log.path, r.log.node, bar.set)
	bar.done()
	diff, different := errors.AsType[*replay.Difference](err)
	if err != nil && !different {
		return err
	}
	l := report.Log
	body := verifyBody{
		OK: !different, Index: l.Head.Index, ChainHash: hex.EncodeToString(l.Head.Chain[:]), First: l.First,
		Segments: l.Segments, Blocks: l.Blocks, Events: l.Records, Erased: l.Erased, Bytes: l.Bytes, Checkpoints: report.Checkpoints,
	}
	if l.Tail != nil {
		body.TornBytes = l.Tail.Bytes
		fmt.Fprintf(r.stderr, "qlogd: the log's tail is torn or still being written: %s after offset %d of %s (%s); this is no difference\n",
			plural(int(l.Tail.Bytes), "byte", "bytes"), l.Tail.Offset, l.Tail.Segment, l.Tail.Reason)
	}
	if different {
		body.WrongIndex, body.Difference = diff.Index, diff.Error()
	}
	if r.output == "json" {
		if err := r.wire(verified{body}); err != nil {
			return err
		}
	} else if !different {
		err := r.pairs("verified", r.log.name, [][]any{
			{"indexes", fmt.Sprintf("%d to %d", l.First, l.Head.Index)},
			{"chain", body.ChainHash},
			{"segments", l.Segments}, {"blocks", humanize.Comma(l.Blocks)}, {"events", humanize.Comma(l.Records)},
			{"bytes", humanize.IBytes(uint64(l.Bytes))}, {"erased contents", l.Erased},
			{"checkpoints", fmt.Sprintf("%d, all equal to the fold", report.Checkpoints)},
			{"log's clock", wire.Time(report.State.Clock()).String()},
		})
		if err != nil {
			return err
		}
	}
	if different {
		where := ""
		if diff.Index > 0 {
			where = fmt.Sprintf(" (first wrong: index:%d)", diff.Index)
		}
		return &exitError{exitDifference, fmt.Errorf("verification found a difference%s: %w", where, diff)}
	}
	return nil
}
