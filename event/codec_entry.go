package event

import (
	"encoding/binary"
	"fmt"
)

// Rules is the newest version of the rules of deciding that this binary knows. An entry carries the
// version that was in force when it was proposed: a node that does not know it stops there (I19).
const Rules = 1

// Entry is what Raft replicates: a group of commands and the leader's time.
//
//	version u8 · rules u16 · time i64 · count u32 · count × (length u32 · command)
//
// all big-endian. An entry without commands only lets what is due happen.
type Entry struct {
	Rules    uint16
	Time     int64 // Unix ms
	Commands [][]byte
}

const entryHead = 1 + 2 + 8 + 4

// Encode returns the entry's bytes.
func (e *Entry) Encode() []byte {
	n := entryHead
	for _, c := range e.Commands {
		n += 4 + len(c)
	}
	b := make([]byte, 0, n)
	b = append(b, Version)
	b = binary.BigEndian.AppendUint16(b, e.Rules)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time))
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Commands)))
	for _, c := range e.Commands {
		b = binary.BigEndian.AppendUint32(b, uint32(len(c)))
		b = append(b, c...)
	}
	return b
}

// DecodeEntry takes an entry apart; the commands alias b.
func DecodeEntry(b []byte) (*Entry, error) {
	if len(b) < entryHead {
		return nil, fmt.Errorf("entry: %d bytes are too few", len(b))
	}
	if b[0] != Version {
		return nil, fmt.Errorf("entry: version %d is not this program's %d", b[0], Version)
	}
	e := &Entry{Rules: binary.BigEndian.Uint16(b[1:]), Time: int64(binary.BigEndian.Uint64(b[3:]))}
	n := int(binary.BigEndian.Uint32(b[11:]))
	b = b[entryHead:]
	if n > len(b)/4 {
		return nil, fmt.Errorf("entry: %d commands in %d bytes", n, len(b))
	}
	e.Commands = make([][]byte, 0, n)
	for i := range n {
		if len(b) < 4 {
			return nil, fmt.Errorf("entry: command %d is cut", i)
		}
		l := int(binary.BigEndian.Uint32(b))
		if b = b[4:]; l > len(b) {
			return nil, fmt.Errorf("entry: command %d is cut", i)
		}
		e.Commands = append(e.Commands, b[:l:l])
		b = b[l:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("entry: %d bytes too many", len(b))
	}
	return e, nil
}
