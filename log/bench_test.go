package log

import (
	"crypto/sha256"
	"strings"
	"testing"
)

// benchLog is a log on the real disk with n blocks of 64 records of 1 KiB.
func benchLog(b *testing.B, n int, opts Options) *Log {
	b.Helper()
	opts.Dir = b.TempDir() + "/log"
	l, err := Open(opts)
	must(b, err)
	b.Cleanup(func() { l.Close() })
	for i := range n {
		must(b, l.append(benchBlock(uint64(i+1))))
	}
	return l
}

func benchBlock(index uint64) *rawBlock {
	content := []byte(strings.Repeat("x", 1024))
	rs := make([]record, 64)
	digest := sha256.Sum256(content)
	for n := range rs {
		rs[n] = record{Header: content[:80], Content: content, Digest: digest,
			Subject: key("%d %d", index, n)}
	}
	return block(index, rs...)
}

func BenchmarkAppend(b *testing.B) {
	l := benchLog(b, 0, Options{CacheBytes: 64 << 20})
	blk := benchBlock(1)
	b.SetBytes(64 * 1024)
	for i := uint64(1); b.Loop(); i++ {
		blk.Index = i
		for n := range blk.Records {
			le16(blk.Records[n].ID[:], i, n)
		}
		must(b, l.append(blk))
	}
}

// BenchmarkRead reads a log in order, checking everything but digests.
func BenchmarkRead(b *testing.B) {
	l := benchLog(b, 1000, Options{})
	b.SetBytes(1000 * 64 * 1024)
	for b.Loop() {
		_, err := tryReadAll(l, 0)
		must(b, err)
	}
}
