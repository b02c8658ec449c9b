package raft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// holds returns the files of the Raft log in which some bytes are.
func holds(t testing.TB, disk *memdisk.Disk, mark string) (in []string) {
	t.Helper()
	names, err := disk.List("/raft")
	require.False(t, err != nil && !errors.Is(err, fs.ErrNotExist), "%v", err)
	for _, name := range names {
		if bytes.Contains(disk.Get("/raft/"+name), []byte(mark)) {
			in = append(in, name)
		}
	}
	return in
}

func marker(i int) string { return fmt.Sprintf("marker-%d-%s", i, strings.Repeat("x", 90)) }

// What is shed is in no file any more: from one that is not full, from several,
// behind one that has just become full, and after a restart.
func TestShed(t *testing.T) {
	for _, c := range []struct {
		puts, behind, size int
		again              bool
	}{
		{puts: 1, size: 16 << 10},
		{puts: 30, size: 16 << 10, again: true},
		{puts: 30, size: 2048},
		{puts: 30, behind: 3, size: 2048, again: true},
		{puts: 15, size: 2048},
		{puts: 16, size: 2048},
		{puts: 16, size: 2048, again: true},
		{puts: 17, size: 2048},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			disk := memdisk.New()
			o := on(disk)
			o.SegmentBytes = c.size
			n := boot(t, o)
			var last uint64
			for i := range c.puts {
				last = n.put(marker(i)).Index
			}
			for i := range c.behind {
				n.put(fmt.Sprintf("behind-%d-%0100d", i, i))
			}
			if c.again {
				n = n.again()
			}
			require.NotEqual(t, len(holds(t, disk, "marker-0-")), 0,
				"the first entry was not found before")
			require.NoError(t, n.PurgeLog(context.Background(), last))
			if in := holds(t, disk, "marker-"); len(in) > 0 {
				t.Errorf("still in %v", in)
			}
			n.put("more")
			want := n.m.names()
			n = n.again()
			n.put("yet more")
			assert.Equal(t, len(n.m.names()), len(want)+1, "entries")
			// Again is done at once.
			before := n.Status().Last
			if err := n.PurgeLog(context.Background(), last); err != nil || n.Status().Last != before {
				t.Errorf("%v, last %d, then %d", err, before, n.Status().Last)
			}
		})
	}
}

// What a leader had stored and others then replaced is at the end of a file that
// counts no more, or behind what counts.
func TestShedReplaced(t *testing.T) {
	disk := memdisk.New()
	s := openLogOn(t, disk, 16<<10)
	mark := strings.Repeat("replaced", 10)
	store := func(from, to uint64, data string) {
		t.Helper()
		for i := from; i <= to; i++ {
			require.NoError(t, s.StoreLog(&hraft.Log{Index: i, Term: 1, Type: hraft.LogCommand,
				Data: []byte(data)}))
		}
	}
	store(1, 10, "stays")
	store(11, 20, mark)
	s.committed = func() uint64 { return 10 }
	require.NoError(t, s.DeleteRange(11, 20))
	store(11, 30, "other")
	require.NotEqual(t, len(holds(t, disk, mark)), 0, "what was replaced was not found before")
	h, err := s.holding(15)
	require.True(t, err == nil && h.files == 2 && h.newest && h.to == 15, "%+v, %v", h, err)
	// Of the two files one is full, as far as raft-wal knows.
	require.NoError(t, s.DeleteRange(1, h.to))
	require.NoError(t, s.reopen())
	if h, err = s.holding(15); err != nil || h.files != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if in := holds(t, disk, mark); len(in) > 0 {
		t.Errorf("still in %v", in)
	}
	for i := uint64(16); i <= 30; i++ {
		var l hraft.Log
		if err := s.read(i, &l); err != nil || string(l.Data) != "other" {
			t.Errorf("entry %d: %q, %v", i, l.Data, err)
		}
	}
	store(31, 40, "more")
}

// TestShedCrashAnywhere lets the power fail in each write, sync, rename and
// removal while the log is shed: nothing that was acknowledged is lost, what was
// shed does not come back, and shedding goes on where it was.
func TestShedCrashAnywhere(t *testing.T) {
	type outcome struct {
		acked []string
		last  uint64 // of the marked entries
		shed  bool
	}
	story := func(disk *memdisk.Disk) (out outcome) {
		o := on(disk)
		o.SegmentBytes = 2048
		n, err := tryBoot(t, o)
		if err != nil {
			return out
		}
		defer n.down()
		if !n.leads() {
			return out
		}
		try := func(name string) bool {
			res, err := n.Propose(context.Background(), put(name))
			if err == nil {
				out.acked = append(out.acked, name)
				out.last = res.Index
			}
			return err == nil
		}
		for i := range 12 {
			if !try(marker(i)) {
				return out
			}
		}
		last := out.last
		out.shed = n.PurgeLog(context.Background(), last) == nil
		try("after")
		out.last = last
		return out
	}
	whole := memdisk.New()
	if out := story(whole); !out.shed || len(out.acked) != 13 {
		t.Fatalf("%+v", out)
	}
	for at := 1; at <= whole.Ops(); at += stride(3) {
		disk := memdisk.New()
		disk.CrashAt(at)
		out := story(disk)
		for _, loss := range losses(at) {
			after := disk.CrashWith(loss, rng(at))
			if in := holds(t, after, "marker-"); out.shed && len(in) > 0 {
				t.Errorf("crash at operation %d, loss %d: what was shed is in %v", at, loss, in)
			}
			o := on(after)
			o.SegmentBytes = 2048
			n, err := tryBoot(t, o)
			require.NoError(t, err, "crash at operation %d, loss %d", at, loss)
			n.ready()
			names := n.m.names()
			for _, name := range out.acked {
				assert.True(t, slices.Contains(names, name),
					"crash at operation %d, loss %d: %.20q is lost", at, loss, name)
			}
			assert.NoError(t, n.PurgeLog(context.Background(), n.put("more").Index),
				"crash at operation %d, loss %d", at, loss)
			if in := holds(t, after, "marker-"); len(in) > 0 {
				t.Errorf("crash at operation %d, loss %d: still in %v", at, loss, in)
			}
			n.down()
		}
		if t.Failed() {
			return
		}
	}
}
