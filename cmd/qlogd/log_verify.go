package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/replay"
)

// headsLine is what comparing with heads has shown, with --output json.
type headsLine struct {
	Heads headsBody `json:"heads"`
}

type headsBody struct {
	OK          bool   `json:"ok"`
	Heads       int    `json:"heads"`
	Equal       int    `json:"equal"`
	Deleted     int    `json:"deleted"` // by retention: nothing can be said of them
	NewestEqual uint64 `json:"newest_equal_index"`
	WrongIndex  uint64 `json:"wrong_index,omitzero"`
	Difference  string `json:"difference,omitzero"`
}

func (a *app) logVerifyCmd() *cobra.Command {
	s := &logSource{app: a}
	var heads string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the log, and hold it against heads that were kept elsewhere",
		Long: `Checks a data directory as "qlogd replay --verify" does: every checksum, the hash
chain, the fold, every checkpoint. With --heads it is also held against heads that
"qlogd log export-heads" has written: only these show that the log's tail was cut
off, that all of its history was rewritten, or that it is another log. What is found
is told in words, exit code 3.

With --addr a running server is only asked for its chain where the heads are; it is
its word.`,
		Example: `  qlogd log verify --data-dir /backup/qlogd --heads heads.jsonl
  ssh witness cat heads.jsonl | qlogd log verify --data-dir ./qlogd-data --heads -
  qlogd log verify --addr http://127.0.0.1:7070 --heads heads.jsonl`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			var kept []replay.Head
			if heads != "" {
				b, err := a.readInput(heads)
				if err != nil {
					return err
				}
				if kept, err = parseHeads(heads, b); err != nil {
					return err
				}
			}
			if s.reach.addr != "" {
				if heads == "" {
					return usagef("--addr wants --heads: only a data directory can be checked by itself")
				}
				report, err := s.serverHeads(ctx, kept)
				return s.tellHeads(report, err)
			}
			if !s.local() {
				if s.dataDir = a.getenv("QLOGD_DATA_DIR"); s.dataDir == "" {
					s.dataDir = "./qlogd-data"
				}
			}
			l, err := s.openLog(ctx, s.dataDir, s.archive)
			if err != nil {
				return err
			}
			r := &replayer{app: a, log: l}
			if err := r.verifyDir(ctx); err != nil || heads == "" {
				return err
			}
			d, err := l.dir()
			if err != nil {
				return err
			}
			defer d.Close()
			report, err := d.Heads(ctx, kept)
			return s.tellHeads(report, err)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&heads, "heads", "", "a file of heads, one JSON line each (- is stdin)")
	a.outputFlag(cmd)
	return cmd
}

// parseHeads reads what export-heads has written.
func parseHeads(name string, b []byte) ([]replay.Head, error) {
	var out []replay.Head
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for line := 1; sc.Scan(); line++ {
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		var w wire.LogHead
		if err := json.Unmarshal(text, &w); err != nil {
			return nil, usagef("%s:%d: not a head: %w", name, line, err)
		}
		h := replay.Head{ClusterID: w.ClusterID, Index: w.Index, Time: int64(w.Time)}
		if n, err := hex.Decode(h.Chain[:], []byte(w.ChainHash)[:min(len(w.ChainHash), 64)]); err != nil || n != len(h.Chain) || len(w.ChainHash) != 64 {
			return nil, usagef("%s:%d: not a head: chain_hash must be 64 hex digits", name, line)
		}
		if w.EventID != "" {
			var err error
			if h.EventID, err = event.ParseID(w.EventID); err != nil {
				return nil, usagef("%s:%d: not a head: event_id is %w", name, line, err)
			}
		}
		out = append(out, h)
	}
	if err := sc.Err(); err != nil {
		return nil, usagef("%s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, usagef("%s has no heads", name)
	}
	return out, nil
}

// serverHeads holds heads against what a running server says.
func (s *logSource) serverHeads(ctx context.Context, heads []replay.Head) (replay.HeadsReport, error) {
	r := replay.HeadsReport{Heads: len(heads)}
	c, err := s.server()
	if err != nil {
		return r, err
	}
	now, err := c.LogHead(ctx)
	if err != nil {
		return r, told(err)
	}
	for i := range heads {
		kept := headOf(heads[i], heads[i].ClusterID, "")
		if kept.ClusterID == "" {
			kept.ClusterID = now.ClusterID
		}
		var there *wire.LogHead
		if kept.Index <= now.Index {
			there, err = c.LogHead(ctx, client.At(fmt.Sprintf("index:%d", kept.Index)))
			if errors.Is(err, client.ErrHistoryExpired) {
				r.Deleted++
				continue
			}
			if err != nil {
				return r, told(err)
			}
		}
		if err := stillHolds(&kept, now, there); err != nil {
			return r, &replay.Difference{Index: r.Newest + 1, Err: err}
		}
		r.Equal, r.Newest = r.Equal+1, max(r.Newest, kept.Index)
	}
	if r.Equal == 0 {
		return r, fmt.Errorf("none of the %d heads could be held against the log: retention has deleted all of them", r.Heads)
	}
	return r, nil
}

// tellHeads prints what comparing has shown.
func (s *logSource) tellHeads(r replay.HeadsReport, err error) error {
	diff, different := errors.AsType[*replay.Difference](err)
	if err != nil && !different {
		return err
	}
	body := headsBody{OK: !different, Heads: r.Heads, Equal: r.Equal, Deleted: r.Deleted, NewestEqual: r.Newest}
	if different {
		body.WrongIndex, body.Difference = diff.Index, diff.Error()
	}
	if s.output == "json" {
		if err := s.wire(headsLine{body}); err != nil {
			return err
		}
	} else if !different {
		fmt.Fprintf(s.stdout, "%s: %d agree, the newest at index:%d", plural(r.Heads, "head", "heads"), r.Equal, r.Newest)
		if r.Deleted > 0 {
			fmt.Fprintf(s.stdout, "; %d are of history that retention has deleted", r.Deleted)
		}
		fmt.Fprintln(s.stdout)
	}
	if different {
		return &exitError{exitDifference, fmt.Errorf("the heads tell of a difference: %w", diff)}
	}
	return nil
}
