package log

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func golden(t testing.TB, name string) []byte {
	b, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	return b
}

// fuzzDisk lays out a directory.
func fuzzDisk(t testing.TB, files map[string][]byte) *memdisk.Disk {
	disk := memdisk.New()
	must(t, disk.MkdirAll(dir))
	for name, b := range files {
		disk.Put(dir+"/"+name, b)
	}
	return disk
}

// explained fails for an error that is not about the log's bytes.
func explained(t *testing.T, err error) {
	t.Helper()
	require.True(t, IsDamage(err) || errors.As(err, new(*VersionError)),
		"neither corruption nor a newer version: %v", err)
}

// readEverything asks for whatever can be asked: the answer is right or an
// error that names the place.
func readEverything(t *testing.T, l *Log) {
	last := uint64(0)
	for b, err := range l.blocks(0) {
		if err != nil {
			explained(t, err)
			return
		}
		for n, want := range b.Records {
			ref := event.Ref{Index: b.Index, Number: uint32(n)}
			got, err := l.record(ref)
			if err == nil {
				require.Equal(t, diffRecord(got, want), "", "record %s", ref)
			} else if !errors.Is(err, ErrNotFound) { // a made up side file
				explained(t, err)
			}
			for table, key := range [tables][16]byte{want.Subject, want.Alias} {
				if _, _, err := l.newest(table, key, 0); err != nil {
					explained(t, err)
				}
			}
		}
		if _, err := l.ChainAt(b.Index); err != nil {
			explained(t, err)
		}
		if _, _, err := l.SeekTime(b.Time); err != nil && !errors.Is(err, ErrNotFound) {
			explained(t, err)
		}
		last = b.Index
	}
	require.Equal(t, last, l.Head(), "reading ended before the head")
}

// reseal sets all checksums and the chain right, as far as the lengths make
// sense, so that fuzzing gets behind them.
func reseal(b []byte) {
	if len(b) < headerSize {
		return
	}
	le.PutUint32(b[12:], crc(b[:12]))
	salt := crc(b[16:84])
	le.PutUint32(b[84:], salt)
	var chain [32]byte
	copy(chain[:], b[48:80])
	for b = b[headerSize:]; len(b) >= blockSize; {
		le.PutUint32(b[28:], saltedCRC(salt, b[:28]))
		h, reason := parseBlockHeader(b, salt)
		if reason != "" || h.size() > int64(len(b)) {
			return
		}
		sha := sha256.New()
		sha.Write(chain[:])
		sha.Write(b[:28])
		end := blockSize + int64(h.length)
		for at := int64(blockSize); end-at >= recordMinimum; {
			lay := parseLayout(b[at:])
			if !lay.ok || at+lay.size > end {
				break
			}
			le.PutUint32(b[at+4:], recordCRC(b[at:at+lay.headerEnd]))
			sha.Write(b[at : at+lay.headerEnd])
			if lay.flags&flagContent != 0 {
				le.PutUint32(b[at+lay.headerEnd:], crc(b[at+lay.headerEnd+4:at+lay.size]))
			}
			at += lay.size
		}
		copy(chain[:], sha.Sum(nil))
		putTrailer(b[end:], chain, salt)
		b = b[h.size():]
	}
}

// FuzzReadSegment reads any bytes as the only segment of a log.
func FuzzReadSegment(f *testing.F) {
	for _, sealed := range []bool{false, true} {
		f.Add(golden(f, "v1.seg"), sealed)
		f.Add(golden(f, "v1.seg")[:500], sealed)
		f.Add(golden(f, "v1-second.seg"), sealed)
		f.Add([]byte{}, sealed)
		disk, _ := written(f, 6)
		f.Add(disk.Get(newestSegment(f, disk)), sealed)
	}
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			b = bytes.Clone(b)
			reseal(b)
		}
		disk := fuzzDisk(t, map[string][]byte{SegmentName(1): b})
		opts := Options{FS: disk, Dir: dir}
		_, verr := Verify(context.Background(), opts, nil)
		if verr != nil {
			explained(t, verr)
		}
		l, err := OpenReadOnly(opts)
		if err != nil {
			explained(t, err)
			return
		}
		defer l.Close()
		readEverything(t, l)
	})
}

// FuzzOpen opens any bytes as a log of two segments, a side file and a list of
// contents to be erased, and goes on from there.
func FuzzOpen(f *testing.F) {
	f.Add(golden(f, "v1.seg"), golden(f, "v1.idx"), golden(f, "v1-second.seg"),
		golden(f, "v1.list"), uint8(1), uint8(0))
	f.Add(golden(f, "v1.seg"), []byte{}, golden(f, "v1-second.seg")[:300], []byte{}, uint8(1),
		uint8(0))
	f.Add(golden(f, "v1.seg"), golden(f, "v1.idx"), make([]byte, 556), []byte{}, uint8(6), uint8(5))
	f.Add(golden(f, "v1.seg"), golden(f, "v1.idx"), []byte{}, []byte{}, uint8(0), uint8(9))
	f.Fuzz(func(t *testing.T, first, side, second, list []byte, held, durable uint8) {
		files := map[string][]byte{SegmentName(1): first, SegmentName(6): second}
		if len(side) > 0 {
			files[SideFileName(1)] = side
		}
		if len(list) > 0 {
			files[eraseList] = list
		}
		disk := fuzzDisk(t, files)
		before := disk.Clone()
		opts := Options{FS: disk, Dir: dir, HeldFrom: uint64(held), Durable: uint64(durable),
			inline: true}
		l, err := Open(opts)
		if err != nil {
			explained(t, err)
			// But for an erasure that was finished, nothing is changed.
			require.True(t, len(list) > 0 || sameFiles(before, disk) == "", "a refused log was changed")
			return
		}
		defer l.Close()
		readEverything(t, l)
		next := l.Head() + 1
		b := block(next, rec("goes on", "x"))
		for i := range b.Records[0].ID {
			b.Records[0].ID[i] = 0xff
		}
		if err := l.append(b); err != nil || next == 0 {
			return // an id that cannot rise any more
		}
		must(t, l.Close())
		l, err = Open(opts)
		require.NoError(t, err, "opened, closed, and not opened again")
		defer l.Close()
		require.True(t, l.Tail() == nil && l.Head() == next,
			"head %d, want %d; tail %+v", l.Head(), next, l.Tail())
	})
}
