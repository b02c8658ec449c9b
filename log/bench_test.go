package log

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

// benchLog is a log on the real disk with n blocks of 64 records of 1 KiB.
func benchLog(b *testing.B, n int, cacheBytes int64) *Log {
	b.Helper()
	l, err := Open(Options{FS: vfs.OS{}, Dir: b.TempDir() + "/log", CacheBytes: cacheBytes})
	must(b, err)
	b.Cleanup(func() { l.Close() })
	for i := range n {
		must(b, l.Append(benchBlock(uint64(i+1))))
	}
	return l
}

var kilobyte = []byte(strings.Repeat("x", 1024))

func benchBlock(index uint64) *Block {
	rs := make([]Record, 64)
	digest := sha256.Sum256(kilobyte)
	for n := range rs {
		rs[n] = Record{Header: kilobyte[:80], Content: kilobyte, Digest: digest, Subject: key("%d %d", index, n)}
	}
	return block(index, rs...)
}

func BenchmarkAppend(b *testing.B) {
	for name, cached := range map[string]int64{"cached": 64 << 20, "uncached": 0} {
		b.Run(name, func(b *testing.B) {
			l := benchLog(b, 0, cached)
			blk := benchBlock(1)
			b.SetBytes(64 * 1024)
			b.ReportAllocs()
			for i := uint64(1); b.Loop(); i++ {
				blk.Index = i
				for n := range blk.Records {
					le16(blk.Records[n].ID[:], i, n)
					le16(blk.Records[n].Subject[:], i, n)
				}
				must(b, l.Append(blk))
			}
		})
	}
}

func BenchmarkContent(b *testing.B) {
	for name, cached := range map[string]int64{"hit": 1 << 30, "active": 0, "sealed": 0} {
		b.Run(name, func(b *testing.B) {
			l := benchLog(b, 2000, cached) // three segments
			from, to := uint64(1), l.Segments()[0].Last
			if name != "sealed" {
				from, to = l.Segments()[2].First, l.Head().Index
			}
			must(b, l.buildSides())
			rng := testRand(1)
			b.ReportAllocs()
			for b.Loop() {
				_, _, err := l.Content(Ref{from + rng.Uint64N(to-from), uint32(rng.IntN(64))})
				must(b, err)
			}
		})
	}
}

// BenchmarkContents reads 100 records that follow one another, as a lease of a
// hundred messages does.
func BenchmarkContents(b *testing.B) {
	for name, cached := range map[string]int64{"hit": 1 << 30, "active": 0, "sealed": 0} {
		b.Run(name, func(b *testing.B) {
			l := benchLog(b, 2000, cached) // three segments
			from, to := uint64(1), l.Segments()[0].Last
			if name != "sealed" {
				from, to = l.Segments()[2].First, l.Head().Index
			}
			must(b, l.buildSides())
			rng := testRand(1)
			refs := make([]Ref, 100)
			b.ReportAllocs()
			for b.Loop() {
				at := Ref{from + rng.Uint64N(to-from-2), 0}
				for i := range refs {
					refs[i] = at
					if at.Number++; at.Number == 64 {
						at = Ref{at.Index + 1, 0}
					}
				}
				must(b, l.Contents(refs, func(int, []byte, bool) error { return nil }))
			}
		})
	}
}

func BenchmarkLast(b *testing.B) {
	l := benchLog(b, 2000, 0)
	must(b, l.buildSides())
	for name, seg := range map[string]int{"active": 2, "sealed": 0} {
		b.Run(name, func(b *testing.B) {
			s := l.Segments()[seg]
			rng := testRand(1)
			b.ReportAllocs()
			for b.Loop() {
				subject := key("%d %d", s.First+rng.Uint64N(s.Last-s.First), rng.IntN(64))
				if _, ok, err := l.Last(subject); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
	b.Run("missing", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, ok, err := l.Last(key("no %d", i)); ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
}

// BenchmarkLookUp looks keys up in a log of many segments: with filters it costs
// what has the key, and a question to each filter in memory.
func BenchmarkLookUp(b *testing.B) {
	for _, segments := range []int{16, 160, 1600} {
		l, err := Open(Options{FS: vfs.OS{}, Dir: b.TempDir() + "/log", SegmentSize: 16 << 10, inline: true})
		must(b, err)
		index := uint64(0)
		for len(l.Segments()) <= segments {
			index++
			rs := make([]Record, 8)
			for n := range rs {
				rs[n] = Record{Header: kilobyte[:80], Subject: key("%d %d", index, n)}
			}
			must(b, l.Append(block(index, rs...)))
		}
		for _, name := range []string{"filters", "pages"} {
			if name == "pages" {
				for _, seg := range l.segments[:segments] {
					seg.side.filters = [3]sideFilter{} // as of version 1
				}
			}
			b.Run(fmt.Sprintf("segments=%d/%s/oldest", segments, name), func(b *testing.B) {
				for b.Loop() {
					if _, ok, err := l.Last(key("%d %d", 1, 3)); !ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
			b.Run(fmt.Sprintf("segments=%d/%s/missing", segments, name), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					if _, ok, err := l.FindAlias(key("no %d", i), 0); ok || err != nil {
						b.Fatal(ok, err)
					}
					if _, ok, err := l.Last(key("no %d", i)); ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
		}
		must(b, l.Close())
	}
}

// BenchmarkRead reads a log in order, checking everything but digests.
func BenchmarkRead(b *testing.B) {
	l := benchLog(b, 1000, 0)
	size := int64(0)
	for _, s := range l.Segments() {
		size += s.Size
	}
	b.SetBytes(size)
	for b.Loop() {
		_, err := tryReadAll(l, 0)
		must(b, err)
	}
}
