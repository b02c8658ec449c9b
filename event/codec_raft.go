package event

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
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
		if len(b) < 4 || len(b)-4 < int(binary.BigEndian.Uint32(b)) {
			return nil, fmt.Errorf("entry: command %d is cut", i)
		}
		end := 4 + int(binary.BigEndian.Uint32(b))
		e.Commands = append(e.Commands, b[4:end:end])
		b = b[end:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("entry: %d bytes too many", len(b))
	}
	return e, nil
}

// Forwarded is one command on its way from the node that took it to the leader:
// its bytes, and beside them what the leader needs to know to put it in line.
// So it is encoded once and decoded only where it is executed.
type Forwarded struct {
	Class  Class
	Weight uint32 // messages, leases or settles that it asks for
	Data   []byte // an encoded Command
}

// A group on its way:
//
//	version u8 · count u32 · count × (class u8 · weight u32 · length u32 · command) · crc32c u32
//
// all big-endian. The sum is over all before it: a command whose bytes went wrong on the way would
// be refused by every node when it is executed, and a node that cannot execute an entry stops.
const (
	groupHead   = 1 + 4
	groupMember = 1 + 4 + 4
	groupTail   = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// GroupSize returns how many bytes AppendGroup adds.
func GroupSize(group []Forwarded) int {
	n := groupHead + groupTail + len(group)*groupMember
	for i := range group {
		n += len(group[i].Data)
	}
	return n
}

// AppendGroup appends a group's bytes to b.
func AppendGroup(b []byte, group []Forwarded) []byte {
	start := len(b)
	b = append(b, Version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(group)))
	for i := range group {
		f := &group[i]
		b = append(b, byte(f.Class))
		b = binary.BigEndian.AppendUint32(b, f.Weight)
		b = binary.BigEndian.AppendUint32(b, uint32(len(f.Data)))
		b = append(b, f.Data...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// DecodeGroup takes a group apart; the commands alias b. A group of more commands, or with one of
// more bytes, is an error.
func DecodeGroup(b []byte, commands, bytes int) ([]Forwarded, error) {
	if len(b) < groupHead+groupTail {
		return nil, fmt.Errorf("group: %d bytes are too few", len(b))
	}
	if b[0] != Version {
		return nil, fmt.Errorf("group: version %d is not this program's %d", b[0], Version)
	}
	body, sum := b[:len(b)-groupTail], binary.BigEndian.Uint32(b[len(b)-groupTail:])
	count := binary.BigEndian.Uint32(b[1:])
	if count == 0 || uint64(count) > uint64(commands) ||
		uint64(count) > uint64(len(body)/groupMember) {
		return nil, fmt.Errorf("group: %d commands in %d bytes, at most %d may be", count, len(b),
			commands)
	}
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("wrong checksum of a group of %d bytes", len(b))
	}
	group := make([]Forwarded, count)
	body = body[groupHead:]
	for i := range group {
		if len(body) < groupMember {
			return nil, fmt.Errorf("group: command %d is cut", i)
		}
		f := &group[i]
		f.Class, f.Weight = Class(body[0]), binary.BigEndian.Uint32(body[1:])
		n := binary.BigEndian.Uint32(body[5:])
		body = body[groupMember:]
		switch {
		case f.Class >= Classes:
			return nil, fmt.Errorf("group: command %d is of class %d", i, f.Class)
		case uint64(n) > uint64(bytes):
			return nil, fmt.Errorf("group: command %d has %d bytes, at most %d may be", i, n, bytes)
		case uint64(n) > uint64(len(body)):
			return nil, fmt.Errorf("group: command %d is cut", i)
		case n == 0 || body[0] != Version:
			return nil, fmt.Errorf("group: command %d is of another version than this program's %d",
				i, Version)
		}
		f.Data = body[:n:n]
		body = body[n:]
	}
	if len(body) != 0 {
		return nil, fmt.Errorf("group: %d bytes too many", len(body))
	}
	return group, nil
}
