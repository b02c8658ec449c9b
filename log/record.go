package log

import (
	"bytes"
	"hash/crc32"

	"github.com/qlogd/qlogd/event"
)

// recordSize is the length of r on disk.
func recordSize(r *record) int64 {
	n := recordHeaderSize(r)
	if r.Content != nil {
		n += 4 + int64(len(r.Content))
	}
	return n
}

// recordHeaderSize is where r's header ends: all of it that the chain covers.
func recordHeaderSize(r *record) int64 {
	n := int64(recordMinimum + len(r.Header))
	if r.Subject != [16]byte{} {
		n += 16
	}
	if r.Alias != [16]byte{} {
		n += 16
	}
	if !r.Prev.IsZero() {
		n += 12
	}
	if r.Content != nil {
		n += 36
	}
	return n
}

// appendRecord writes r to b and returns where in b its header ends.
func appendRecord(b []byte, r *record) (out []byte, headerEnd int) {
	start := len(b)
	flags := uint32(0)
	b = le.AppendUint32(b, uint32(recordSize(r)))
	b = le.AppendUint32(b, 0) // checksum, below
	b = le.AppendUint32(b, 0) // flags and header length, below
	b = append(b, r.ID[:]...)
	if r.Subject != [16]byte{} {
		flags |= flagSubject
		b = append(b, r.Subject[:]...)
	}
	if r.Alias != [16]byte{} {
		flags |= flagAlias
		b = append(b, r.Alias[:]...)
	}
	if !r.Prev.IsZero() {
		flags |= flagPrev
		b = le.AppendUint64(b, r.Prev.Index)
		b = le.AppendUint32(b, r.Prev.Number)
	}
	if r.Content != nil {
		flags |= flagContent
		b = append(b, r.Digest[:]...)
		b = le.AppendUint32(b, uint32(len(r.Content)))
	}
	b = append(b, r.Header...)
	head := b[start:]
	le.PutUint32(head[8:], flags|uint32(len(r.Header))<<8)
	le.PutUint32(head[4:], recordCRC(head))
	headerEnd = len(b)
	if r.Content != nil {
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

// layout is what a record's first 12 bytes say of its extent. It is only to be
// trusted after the header's checksum.
type layout struct {
	size      int64 // of the whole record
	headerEnd int64
	flags     uint8
	ok        bool // it can be true
}

func parseLayout(b []byte) layout {
	word := le.Uint32(b[8:])
	l := layout{size: int64(le.Uint32(b)), flags: uint8(word)}
	l.headerEnd = recordMinimum + int64(word>>8)
	l.headerEnd += int64(l.flags&flagSubject)*16 + int64(l.flags&flagAlias)/flagAlias*16 +
		int64(l.flags&flagPrev)/flagPrev*12 + int64(l.flags&flagContent)/flagContent*36
	l.ok = l.flags&^flagsKnown == 0 &&
		(l.flags&flagContent == 0 && l.size == l.headerEnd ||
			l.flags&flagContent != 0 && l.size >= l.headerEnd+4)
	return l
}

// parseRecordHeader reads a record up to the end of its header; the record's slices lie in
// head. reason is "" when it is right. trusted skips the checksum.
func parseRecordHeader(head []byte, l layout, r *record, trusted bool) (reason string) {
	if !trusted && recordCRC(head) != le.Uint32(head[4:]) {
		return "wrong checksum of the record header"
	}
	*r = record{}
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

// contentState is what a content's checksum says.
type contentState int

const (
	contentWrong contentState = iota
	contentGood
	contentErased
)

// checkContent judges a content with its checksum before it.
func checkContent(b []byte) contentState {
	sum, content := le.Uint32(b), b[4:]
	switch sum {
	case crc(content):
		return contentGood
	case erasedCRC(content):
		if isMark(content) {
			return contentErased
		}
	}
	return contentWrong
}

const erasureMark = "[erased]"

var erasedSeed = crc([]byte("erased"))

func erasedCRC(content []byte) uint32 { return crc32.Update(erasedSeed, castagnoli, content) }

// appendErased appends the checksum and the mark that replace a content of n bytes.
func appendErased(b []byte, n int64) []byte {
	mark := bytes.Repeat([]byte(erasureMark), int(n)/len(erasureMark)+1)[:n]
	b = le.AppendUint32(b, erasedCRC(mark))
	return append(b, mark...)
}

func isMark(b []byte) bool {
	for i := range b {
		if b[i] != erasureMark[i%len(erasureMark)] {
			return false
		}
	}
	return true
}

// risesTo reports whether id may follow last.
func risesTo(last, id [16]byte) bool { return bytes.Compare(last[:], id[:]) < 0 }
