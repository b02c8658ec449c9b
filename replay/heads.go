package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
)

// eventNear is how many blocks are searched for an event: those of an idle cluster are empty.
const eventNear = 256

// HeadAt returns the log's newest block up to index, or log.ErrGone if retention has deleted it.
// Index 0 is the empty log. A hash chain reveals changes in the middle;
// only a head that is kept elsewhere reveals that the end was cut off, or the whole log rewritten.
func HeadAt(l *log.Log, card *datadir.Node, index uint64) (h wire.LogHead, err error) {
	h.ClusterID, h.NodeID = card.ClusterID, card.NodeID
	h.ChainHash = event.Chain{}.String() // of the empty log
	for i, looked := min(index, l.Head()), 0; i > 0 && looked < eventNear; i-- {
		b, err := l.Block(i)
		if errors.Is(err, log.ErrNotFound) {
			continue // one of Raft's own
		}
		if errors.Is(err, log.ErrGone) && h.Index > 0 {
			break
		}
		if err != nil {
			return h, err
		}
		looked++
		if h.Index == 0 {
			h.Index, h.ChainHash, h.Time = b.Index, event.Chain(b.Chain).String(), wire.Time(b.Time)
		}
		if n := len(b.Events); n > 0 {
			h.EventID = b.Events[n-1].ID.String()
			break
		}
	}
	return h, nil
}

// HeadsReport is the result of comparing heads with a log.
type HeadsReport struct {
	Heads   int    `json:"heads"`              // how many there were
	Equal   int    `json:"equal"`              // the log has these blocks, with these chains
	Deleted int    `json:"deleted"`            // by retention: they cannot be compared
	Newest  uint64 `json:"newest_equal_index"` // everything up to there is unchanged
}

// Chain is the hash chain of a log that is compared with heads: a directory's, or a server's.
type Chain struct {
	Head wire.LogHead
	Fork *datadir.Fork // of a copy: its log is the original's up to there
	// At returns the chain at an index up to the head's, or log.ErrGone if that is deleted.
	At func(index uint64) (string, error)
}

// Chain returns the chain of the directory's log. It assumes that the chain is that of the log's
// blocks: see Verify.
func (d *Dir) Chain() (c Chain, err error) {
	c.Fork = d.Node.Fork
	c.At = func(index uint64) (string, error) {
		chain, err := d.Log.ChainAt(index)
		return event.Chain(chain).String(), err
	}
	c.Head, err = HeadAt(d.Log, d.Node, d.Log.Head())
	return c, err
}

// Segments returns the files of a log.
func Segments(l *log.Log, card *datadir.Node) wire.LogSegments {
	out := wire.LogSegments{
		ClusterID: card.ClusterID, NodeID: card.NodeID, Segments: []wire.LogSegment{},
	}
	for _, s := range l.Segments() {
		out.Segments = append(out.Segments, wire.LogSegment{
			Name: s.Name, FirstIndex: s.First, LastIndex: s.Last, Bytes: s.Size,
			PreviousIndex: s.PrevIndex, PreviousChainHash: s.PrevChain.String(),
			ChainHash: s.Chain.String(), LastTime: wire.Time(s.Clock),
			Sealed: s.Sealed,
		})
	}
	return out
}

// Compare compares heads that were kept elsewhere with the chain. The first thing wrong is a
// *Difference, which says whether the log's end was cut off, its history was rewritten, or it is
// another log.
func (c Chain) Compare(ctx context.Context, heads []wire.LogHead) (HeadsReport, error) {
	r := HeadsReport{Heads: len(heads)}
	heads = slices.Clone(heads)
	slices.SortStableFunc(heads, func(a, b wire.LogHead) int {
		return cmp.Compare(a.Index, b.Index)
	})
	for i := 1; i < len(heads); i++ {
		if a, b := heads[i-1], heads[i]; a.Index == b.Index && a.ChainHash != b.ChainHash {
			return r, differ(a.Index, "two of the heads contradict each other: at index %d the "+
				"one has chain %.16s…, the other %.16s…; they are of two histories",
				a.Index, a.ChainHash, b.ChainHash)
		}
	}
	fork := cmp.Or(c.Fork, &datadir.Fork{})
	original, forked := fork.ClusterID, fork.Index
	for _, h := range heads {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		known := h.ClusterID != "" && c.Head.ClusterID != ""
		switch {
		case known && h.ClusterID != c.Head.ClusterID && (forked == 0 || h.ClusterID != original):
			return r, differ(h.Index, "this is a foreign log: the head of index %d is of cluster "+
				"%s, the log of cluster %s", h.Index, h.ClusterID, c.Head.ClusterID)
		case forked > 0 && h.ClusterID == original && h.Index > forked:
			return r, differ(forked+1, "the head of index %d is of cluster %s, of which this log "+
				"is a copy that was made at index %d: what came later is not in it",
				h.Index, h.ClusterID, forked)
		case h.Index > c.Head.Index:
			at := ""
			if h.Time > 0 {
				at = ", written at " + log.Stamp(int64(h.Time))
			}
			return r, differ(c.Head.Index+1, "the log's tail was cut off, or this is an older "+
				"copy: it ends at index %d, but there is a head of index %d%s",
				c.Head.Index, h.Index, at)
		case h.Index == 0:
			r.Equal++ // of an empty log, which every log once was
			continue
		}
		chain, err := c.At(h.Index)
		if errors.Is(err, log.ErrGone) {
			r.Deleted++
			continue
		}
		if err != nil {
			return r, difference(err)
		}
		if chain != h.ChainHash {
			what := fmt.Sprintf("at index %d the head has chain %.16s…, the log %.16s…",
				h.Index, h.ChainHash, chain)
			if r.Newest > 0 {
				return r, differ(r.Newest+1, "history was rewritten between index %d, up to which "+
					"it is as it was, and index %d: %s", r.Newest+1, h.Index, what)
			}
			return r, differ(1, "this is a foreign log, or its history was rewritten before index "+
				"%d: %s, and no head before it agrees", h.Index, what)
		}
		r.Equal, r.Newest = r.Equal+1, h.Index
	}
	if r.Heads > 0 && r.Equal == 0 {
		return r, fmt.Errorf("none of the %d heads could be compared with the log: retention has "+
			"deleted everything up to the newest of them, index %d; an archive may hold it",
			r.Heads, heads[len(heads)-1].Index)
	}
	return r, nil
}
