package log

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

const dir = "/log"

func testRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 42)) }

// step returns how far apart the cases of a walk are. With -short, which is for the race detector,
// they are a sample: a walk has one goroutine.
func step(whole, short int) int {
	if testing.Short() {
		return short
	}
	return whole
}

// key returns a key that is spelled out.
func key(format string, args ...any) (k [16]byte) {
	copy(k[:], fmt.Sprintf(format, args...))
	return k
}

// rec is a record of a subject, with a content unless that is "-".
func rec(subject, content string) record {
	r := record{Subject: key("%s", subject), Header: []byte("header of " + subject)}
	if content != "-" {
		r.Content = []byte(content)
		r.Digest = sha256.Sum256(r.Content)
	}
	return r
}

// block is the block with this index and these records, whose ids it makes.
func block(index uint64, records ...record) *rawBlock {
	b := &rawBlock{Index: index, Time: int64(1000 + 10*index), Records: records}
	for i := range b.Records {
		le16(b.Records[i].ID[:], index, i)
	}
	return b
}

func le16(id []byte, index uint64, number int) {
	for i := range 8 {
		id[i] = byte(index >> (56 - 8*i))
	}
	for i := range 4 {
		id[12+i] = byte(number >> (24 - 8*i))
	}
}

// story is block index of a log that is the same in every test: some blocks
// are empty, some indexes are missing, contents differ in length.
func story(i int) *rawBlock {
	index := uint64(i + i/7 + 1)
	var records []record
	rng := testRand(uint64(i))
	if i%5 != 4 {
		for n := range 1 + i%3 {
			r := rec(fmt.Sprintf("message %d", (i+n)%11), "-")
			if n != 1 {
				c := make([]byte, rng.IntN(90))
				for j := range c {
					c[j] = byte('a' + rng.IntN(26))
				}
				r = rec(fmt.Sprintf("message %d", (i+n)%11), string(c))
			}
			if i > 0 && n == 0 {
				r.Prev = event.Ref{Index: uint64(i), Number: uint32(n)}
			}
			if i%4 == 0 {
				r.Alias = key("alias %d", i%8+n)
			}
			if i%6 == 5 {
				r.Subject = [16]byte{}
			}
			records = append(records, r)
		}
	}
	return block(index, records...)
}

func options(fs vfs.FS) Options {
	return Options{FS: fs, Dir: dir, SegmentSize: 1000, HeldFrom: 1, inline: true}
}

func mustOpen(t testing.TB, opts Options) *Log {
	t.Helper()
	l, err := Open(opts)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// must fails the test on an error.
var must = require.NoError

func appendAll(t testing.TB, l *Log, blocks ...*rawBlock) {
	t.Helper()
	for _, b := range blocks {
		must(t, l.append(b))
	}
}

// written returns a disk with a synced log of n blocks of the story, and the
// blocks.
func written(t testing.TB, n int) (*memdisk.Disk, []*rawBlock) {
	t.Helper()
	disk := memdisk.New()
	l := mustOpen(t, options(disk))
	var blocks []*rawBlock
	for i := range n {
		blocks = append(blocks, story(i))
	}
	appendAll(t, l, blocks...)
	must(t, l.Close())
	return disk, blocks
}

// readAll returns all blocks from an index on.
func readAll(t testing.TB, l *Log, from uint64) []*rawBlock {
	t.Helper()
	blocks, err := tryReadAll(l, from)
	must(t, err)
	return blocks
}

func tryReadAll(l *Log, from uint64) ([]*rawBlock, error) {
	var blocks []*rawBlock
	for b, err := range l.blocks(from) {
		if err != nil {
			return blocks, err
		}
		b := *b
		b.Records = slices.Clone(b.Records)
		blocks = append(blocks, &b)
	}
	return blocks, nil
}

// sameBlocks fails unless got is want.
func sameBlocks(t require.T, got, want []*rawBlock) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		require.Equal(t, diffBlock(got[i], want[i]), "", "block %d", want[i].Index)
	}
	require.Equal(t, len(got), len(want), "blocks")
}

func diffBlock(got, want *rawBlock) string {
	if got.Index != want.Index || got.Time != want.Time || got.Chain != want.Chain ||
		len(got.Records) != len(want.Records) {
		return fmt.Sprintf("got %+v, want %+v", got, want)
	}
	for i := range got.Records {
		if diff := diffRecord(got.Records[i], want.Records[i]); diff != "" {
			return fmt.Sprintf("record %d: %s", i, diff)
		}
	}
	return ""
}

func diffRecord(g, w record) string {
	same := g.ID == w.ID && g.Subject == w.Subject && g.Alias == w.Alias && g.Prev == w.Prev &&
		g.Digest == w.Digest &&
		bytes.Equal(g.Header, w.Header) && (g.Content == nil) == (w.Content == nil) &&
		len(g.Content) == len(w.Content) && (g.Erased || bytes.Equal(g.Content, w.Content))
	if !same {
		return fmt.Sprintf("got %+v, want %+v", g, w)
	}
	return ""
}

// corruption returns err as what it must be.
func corruption(t testing.TB, err error) *CorruptionError {
	t.Helper()
	c, ok := errors.AsType[*CorruptionError](err)
	require.True(t, ok, "want a CorruptionError, got %v", err)
	return c
}

// flipped returns a copy of the disk in which bits of one byte of a file in the log's directory are
// flipped.
func flipped(disk *memdisk.Disk, name string, off int64, bits byte) *memdisk.Disk {
	disk = disk.Clone()
	disk.Flip(path.Join(dir, name), int(off), bits)
	return disk
}

// files returns the names in the log's directory.
func files(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List(dir)
	must(t, err)
	return names
}

// newestSegment returns the path of the newest segment.
func newestSegment(t testing.TB, fs vfs.FS) string {
	t.Helper()
	newest := ""
	for _, name := range files(t, fs) {
		if _, ok := firstIndex(name, ".seg"); ok {
			newest = path.Join(dir, name)
		}
	}
	return newest
}

// tip is the newest block's index and chain.
type tip struct {
	index uint64
	chain [32]byte
}

func tipOf(l *Log) (t tip) {
	t.index, t.chain = l.Tip()
	return t
}

// contentOf returns a record's content, and whether it was erased.
func contentOf(l *Log, ref event.Ref) (content []byte, erased bool, err error) {
	r, err := l.record(ref)
	return r.Content, r.Erased, err
}

// everyLookup asks a log for everything there is in the blocks that it holds, some of whose
// contents were erased.
func everyLookup(t require.T, l *Log, blocks []*rawBlock, erased map[event.Ref]bool) {
	t.Helper()
	got, err := tryReadAll(l, 0)
	must(t, err)
	sameBlocks(t, got, blocks)
	newest := [tables]map[[16]byte]event.Ref{{}, {}}
	_, clock := l.Begins()
	for i, b := range blocks {
		for n, want := range b.Records {
			ref := event.Ref{Index: b.Index, Number: uint32(n)}
			got, err := l.record(ref)
			must(t, err)
			diff := diffRecord(got, want)
			require.True(t, diff == "" && got.Erased == erased[ref],
				"record %s: erased %v, %s", ref, got.Erased, diff)
			newest[tableSubjects][want.Subject], newest[tableAliases][want.Alias] = ref, ref
		}
		beyond := event.Ref{Index: b.Index, Number: uint32(len(b.Records))}
		_, err := l.record(beyond)
		require.ErrorIs(t, err, ErrNotFound, "past the last record of block %d", b.Index)
		chain, err := l.ChainAt(b.Index)
		must(t, err)
		require.Equal(t, chain, b.Chain, "chain at %d", b.Index)
		for _, ms := range []int64{clock + 1, b.Time} {
			index, ok, err := l.SeekTime(ms)
			require.False(t, b.Time > clock && (err != nil || !ok || index != b.Index),
				"time %d: block %d, %v, %v, want %d", ms, index, ok, err, b.Index)
		}
		clock = max(clock, b.Time)
		if i%10 == 5 {
			got, err := tryReadAll(l, b.Index)
			must(t, err)
			sameBlocks(t, got, blocks[i:])
		}
	}
	for table, keys := range newest {
		delete(keys, [16]byte{})
		for key, want := range keys {
			got, ok, err := l.newest(table, key, want.Index)
			require.True(t, got == want && ok && err == nil,
				"newest of %q: %v %v %v, want %v", key, got, ok, err, want)
			got, ok, err = l.newest(table, key, want.Index+1)
			require.True(t, !ok && err == nil, "%q after its newest record: %v %v", key, got, err)
		}
		for _, key := range [][16]byte{{}, key("nobody")} {
			_, ok, err := l.newest(table, key, 0)
			require.True(t, !ok && err == nil, "a key that is not there: %v %v", ok, err)
		}
	}
	_, ok, err := l.SeekTime(clock + 1)
	require.True(t, !ok && err == nil, "a time that has not come: %v %v", ok, err)
}
