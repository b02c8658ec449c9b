package log

import (
	"bytes"
	"hash/crc32"

	"github.com/qlogd/qlogd/event"
)

// record is one event as the log keeps it. The slices of a record that was read belong to the log
// and must not be changed; they stay valid for as long as they are kept.
type record struct {
	ID      [16]byte  // a ULID; opaque, but append wants it to rise strictly
	Subject [16]byte  // a key to find the record by; zero = none
	Alias   [16]byte  // another key to find it by; zero = none
	Prev    event.Ref // the subject's record before this one; zero = none
	// Digest is the SHA-256 of Content, made by the caller; zero without content.
	Digest [32]byte
	Header []byte
	// Content is nil for none; a content of no bytes is not nil. Of an erased
	// one only the length is true.
	Content []byte
	Erased  bool // set by readers
	Damaged bool // its content was lost to damage; it is Erased, too
}

// layout is a record's extent. One that was read is only to be trusted after the header's
// checksum.
type layout struct {
	size      int64 // of the whole record
	headerEnd int64 // where all that the chain covers ends
	flags     uint8
	ok        bool // it can be true
}

// partSizes are the sizes of the parts behind the flags.
var partSizes = [...]int64{16, 16, 12, 36}

func newLayout(flags uint8, header int) layout {
	l := layout{flags: flags, headerEnd: recordMinimum + int64(header)}
	for i, n := range partSizes {
		if flags>>i&1 != 0 {
			l.headerEnd += n
		}
	}
	return l
}

// layoutOf returns the extent of r on disk.
func layoutOf(r *record) layout {
	flags := uint8(0)
	for i, has := range [...]bool{r.Subject != [16]byte{}, r.Alias != [16]byte{}, !r.Prev.IsZero(),
		r.Content != nil} {
		if has {
			flags |= 1 << i
		}
	}
	if r.Damaged {
		flags |= flagDamaged
	}
	l := newLayout(flags, len(r.Header))
	if l.size = l.headerEnd; r.Content != nil {
		l.size += 4 + int64(len(r.Content))
	}
	return l
}

// parseLayout reads a record's first 12 bytes.
func parseLayout(b []byte) layout {
	word := le.Uint32(b[8:])
	l := newLayout(uint8(word), int(word>>8))
	l.size = int64(le.Uint32(b))
	content := l.flags&flagContent != 0
	l.ok = l.flags&^flagsKnown == 0 &&
		(!content && l.size == l.headerEnd || content && l.size >= l.headerEnd+4)
	return l
}

// appendRecord writes r to b and returns where in b its header ends.
func appendRecord(b []byte, r *record) (out []byte, headerEnd int) {
	start, l := len(b), layoutOf(r)
	b = le.AppendUint32(b, uint32(l.size))
	b = le.AppendUint32(b, 0) // checksum, below
	b = le.AppendUint32(b, uint32(l.flags)|uint32(len(r.Header))<<8)
	b = append(b, r.ID[:]...)
	if l.flags&flagSubject != 0 {
		b = append(b, r.Subject[:]...)
	}
	if l.flags&flagAlias != 0 {
		b = append(b, r.Alias[:]...)
	}
	if l.flags&flagPrev != 0 {
		b = le.AppendUint64(b, r.Prev.Index)
		b = le.AppendUint32(b, r.Prev.Number)
	}
	if l.flags&flagContent != 0 {
		b = append(b, r.Digest[:]...)
		b = le.AppendUint32(b, uint32(len(r.Content)))
	}
	b = append(b, r.Header...)
	le.PutUint32(b[start+4:], recordCRC(b[start:]))
	headerEnd = len(b)
	switch {
	case r.Erased:
		b = append(b, erased(int64(len(r.Content)))...)
	case l.flags&flagContent != 0:
		b = le.AppendUint32(b, crc(r.Content))
		b = append(b, r.Content...)
	}
	return b, headerEnd
}

// recordCRC is the checksum of a record's bytes up to the end of its header,
// without the checksum itself.
func recordCRC(head []byte) uint32 {
	return crc32.Update(crc(head[:4]), castagnoli, head[8:])
}

// parseRecordHeader reads a record up to the end of its header; the record's slices lie in
// head. reason is "" when it is right. trusted skips the checksum.
func parseRecordHeader(head []byte, l layout, r *record, trusted bool) (reason string) {
	if !trusted && recordCRC(head) != le.Uint32(head[4:]) {
		return "wrong checksum of the record header"
	}
	*r = record{Damaged: l.flags&flagDamaged != 0}
	copy(r.ID[:], head[12:])
	rest := head[recordMinimum:]
	if l.flags&flagSubject != 0 {
		rest = rest[copy(r.Subject[:], rest):]
	}
	if l.flags&flagAlias != 0 {
		rest = rest[copy(r.Alias[:], rest):]
	}
	if l.flags&flagPrev != 0 {
		r.Prev = event.Ref{Index: le.Uint64(rest), Number: le.Uint32(rest[8:])}
		rest = rest[12:]
	}
	if l.flags&flagContent != 0 {
		copy(r.Digest[:], rest)
		if int64(le.Uint32(rest[32:])) != l.size-l.headerEnd-4 {
			return "lengths in the record header differ"
		}
		rest = rest[36:]
	}
	r.Header = rest[:len(rest):len(rest)]
	return ""
}

const erasureMark = "[erased]"

var erasedSeed = crc([]byte("erased"))

// erased returns the checksum and the mark that replace a content of n bytes.
func erased(n int64) []byte {
	mark := bytes.Repeat([]byte(erasureMark), int(n)/len(erasureMark)+1)[:n]
	return append(le.AppendUint32(nil, crc32.Update(erasedSeed, castagnoli, mark)), mark...)
}

// isErased reports whether a content, with its checksum before it, was erased.
func isErased(body []byte) bool { return bytes.Equal(body, erased(int64(len(body))-4)) }

// risesTo reports whether id may follow last.
func risesTo(last, id [16]byte) bool { return bytes.Compare(last[:], id[:]) < 0 }
