package log

import (
	"bytes"
	"path"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Every flipped byte of a segment that is in no log is found, wherever it was
// cut, and what is said to be right before it is right.
func TestScanSegment(t *testing.T) {
	disk, _ := written(t, 13)
	l, err := OpenReadOnly(options(disk))
	must(t, err)
	defer l.Close()
	segments := l.Segments()
	var after *SegmentInfo
	for i, s := range segments {
		scan := func(b []byte, limit int64, after *SegmentInfo) (ScannedSegment, error) {
			d := disk.Clone()
			d.Put(path.Join("/elsewhere", s.Name), b)
			return ScanSegment(t.Context(), d, "/elsewhere", s.Name, limit, after)
		}
		data := disk.Get(path.Join(dir, s.Name))
		whole, err := scan(data, -1, after)
		must(t, err)
		assert.True(t, whole.Last == s.Last && whole.Chain == s.Chain && whole.Size == s.Size &&
			whole.PrevIndex == s.PrevIndex && whole.Clock == s.Clock,
			"segment %s: %+v, want %+v", s.Name, whole.SegmentInfo, s)
		side := disk.Get(path.Join(dir, s.SideFile))
		assert.True(t, !s.Sealed || bytes.Equal(side, whole.Side), "another side file of %s", s.Name)
		parts := extents(l, i)
		for off := range data {
			bad := bytes.Clone(data)
			bad[off] ^= []byte{0x01, 0x80, 0xff}[off%3]
			got, err := scan(bad, -1, after)
			require.Equal(t, corruption(t, err).Segment, s.Name)
			want := int64(0)
			for _, p := range parts {
				if p.to <= int64(off) {
					want = p.to
				}
			}
			require.Equal(t, got.Size, want, "segment %s, byte %d: right bytes", s.Name, off)
		}
		// Cut between blocks it is whole, and anywhere else not.
		for n := int64(0); n < s.Size; n += 7 {
			got, err := scan(data, n, after)
			require.True(t, (err == nil) == (got.Size == n && n > headerSize) && got.Size <= n,
				"segment %s, cut to %d: %d are right, %v", s.Name, n, got.Size, err)
		}
		for _, wrong := range []SegmentInfo{
			{Last: whole.PrevIndex + 1, Chain: whole.PrevChain, SegmentSize: whole.SegmentSize},
			{Last: whole.PrevIndex, Chain: [32]byte{1}, SegmentSize: whole.SegmentSize},
		} {
			_, err := scan(data, -1, &wrong)
			corruption(t, err)
		}
		after = &whole.SegmentInfo
	}
	for _, name := range []string{"", "x.seg", "../" + segments[0].Name, segments[0].SideFile} {
		_, err := ScanSegment(t.Context(), disk, dir, name, -1, nil)
		assert.ErrorContains(t, err, "is no segment's name")
	}
}
