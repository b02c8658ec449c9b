package raft

//lint:file-ignore SA1019 what hashicorp/raft calls deprecated it still sends, and older nodes read it

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	hraft "github.com/hashicorp/raft"
)

// errMalformed is what another node sent that is no message.
var errMalformed = errors.New("no message of Raft")

// decoder reads messages.
type decoder struct {
	r    *bufio.Reader
	left int64 // bytes that the message may still have
	err  error // the first one; what is read after it is zero

	// What the last header said: the next says the same. Nobody writes to it.
	addr, id, leader []byte
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{errMalformed}, args...)...)
	}
}

// broke notes an error of the connection.
func (d *decoder) broke(err error) {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if d.err == nil {
		d.err = err
	}
}

// spend counts bytes that are about to be read; false: they are not to be.
func (d *decoder) spend(n int64) bool {
	if n > d.left {
		d.fail("it is longer than it may be")
	}
	d.left -= n
	return d.err == nil
}

// request reads a request, without what follows an InstallSnapshot. The error is
// io.EOF where the connection has ended between two.
func (d *decoder) request(limit int64) (command any, err error) {
	t, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}
	d.left, d.err = limit, nil
	switch rpcType(t) {
	case rpcAppendEntries:
		m := &hraft.AppendEntriesRequest{}
		saw := false
		for range d.pairs(d.byte()) {
			switch f := d.field(); f {
			case fieldEntries:
				if saw {
					d.fail("entries twice")
				}
				saw = true
				m.Entries = d.entries()
			case fieldLeader:
				m.Leader = d.same(&d.leader)
			case fieldLeaderCommitIndex:
				m.LeaderCommitIndex = d.uint()
			case fieldPrevLogEntry:
				m.PrevLogEntry = d.uint()
			case fieldPrevLogTerm:
				m.PrevLogTerm = d.uint()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
		command = m
	case rpcRequestVote:
		m := &hraft.RequestVoteRequest{}
		for range d.pairs(d.byte()) {
			switch f := d.field(); f {
			case fieldCandidate:
				m.Candidate = d.bytes()
			case fieldLastLogIndex:
				m.LastLogIndex = d.uint()
			case fieldLastLogTerm:
				m.LastLogTerm = d.uint()
			case fieldLeadershipTransfer:
				m.LeadershipTransfer = d.bool()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
		command = m
	case rpcInstallSnapshot:
		m := &hraft.InstallSnapshotRequest{}
		for range d.pairs(d.byte()) {
			switch f := d.field(); f {
			case fieldConfiguration:
				m.Configuration = d.bytes()
			case fieldConfigurationIndex:
				m.ConfigurationIndex = d.uint()
			case fieldLastLogIndex:
				m.LastLogIndex = d.uint()
			case fieldLastLogTerm:
				m.LastLogTerm = d.uint()
			case fieldLeader:
				m.Leader = d.bytes()
			case fieldPeers:
				m.Peers = d.bytes()
			case fieldSize:
				m.Size = d.int()
			case fieldSnapshotVersion:
				m.SnapshotVersion = hraft.SnapshotVersion(d.int())
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
		if m.Size < 0 {
			d.fail("a snapshot of %d bytes", m.Size)
		}
		command = m
	case rpcTimeoutNow:
		m := &hraft.TimeoutNowRequest{}
		for range d.pairs(d.byte()) {
			d.header(d.field(), &m.RPCHeader)
		}
		command = m
	case rpcRequestPreVote:
		m := &hraft.RequestPreVoteRequest{}
		for range d.pairs(d.byte()) {
			switch f := d.field(); f {
			case fieldLastLogIndex:
				m.LastLogIndex = d.uint()
			case fieldLastLogTerm:
				m.LastLogTerm = d.uint()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
		command = m
	default:
		d.fail("a request of type %d", t)
	}
	return command, d.err
}

// answer reads an answer into response, which is one of hashicorp/raft's. refused
// is the error that the other side tells; after err the connection is at no
// message's end.
func (d *decoder) answer(response any) (refused, err error) {
	d.left, d.err = maxAnswer, nil
	text := d.text()
	c := d.byte()
	if c == 0xc0 || d.err != nil {
		response = nil
	}
	switch m := response.(type) {
	case nil:
	case *hraft.AppendEntriesResponse:
		for range d.pairs(c) {
			switch f := d.field(); f {
			case fieldLastLog:
				m.LastLog = d.uint()
			case fieldNoRetryBackoff:
				m.NoRetryBackoff = d.bool()
			case fieldSuccess:
				m.Success = d.bool()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
	case *hraft.RequestVoteResponse:
		for range d.pairs(c) {
			switch f := d.field(); f {
			case fieldGranted:
				m.Granted = d.bool()
			case fieldPeers:
				m.Peers = d.bytes()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
	case *hraft.InstallSnapshotResponse:
		for range d.pairs(c) {
			switch f := d.field(); f {
			case fieldSuccess:
				m.Success = d.bool()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
	case *hraft.TimeoutNowResponse:
		for range d.pairs(c) {
			d.header(d.field(), &m.RPCHeader)
		}
	case *hraft.RequestPreVoteResponse:
		for range d.pairs(c) {
			switch f := d.field(); f {
			case fieldGranted:
				m.Granted = d.bool()
			case fieldTerm:
				m.Term = d.uint()
			default:
				d.header(f, &m.RPCHeader)
			}
		}
	default:
		d.fail("nothing to read an answer into: %T", response)
	}
	if d.err == nil && text != "" {
		refused = errors.New(text)
	}
	return refused, d.err
}

func (d *decoder) entries() []*hraft.Log {
	n := int64(0)
	switch c := d.byte(); {
	case c == 0xc0:
		return nil
	case c >= 0x90 && c <= 0x9f:
		n = int64(c & 0x0f)
	case c == 0xdc:
		n = int64(d.number(2))
	case c == 0xdd:
		n = int64(d.number(4))
	default:
		d.wrong(c)
	}
	if n > maxEntries {
		d.fail("%d entries", n)
	}
	if d.err != nil {
		return nil
	}
	logs, list := make([]hraft.Log, n), make([]*hraft.Log, n)
	for i := range logs {
		l := &logs[i]
		list[i] = l
		for range d.pairs(d.byte()) {
			switch d.field() {
			case fieldAppendedAt:
				l.AppendedAt = d.time()
			case fieldData:
				l.Data = d.bytes()
			case fieldExtensions:
				l.Extensions = d.bytes()
			case fieldIndex:
				l.Index = d.uint()
			case fieldTerm:
				l.Term = d.uint()
			case fieldType:
				v := d.uint()
				if l.Type = hraft.LogType(v); uint64(l.Type) != v {
					d.fail("an entry of type %d", v)
				}
			default:
				d.skip()
			}
		}
		if d.err != nil {
			return nil
		}
	}
	return list
}

// header reads a field that all messages have, or goes over one that none has.
func (d *decoder) header(f field, h *hraft.RPCHeader) {
	switch f {
	case fieldAddr:
		h.Addr = d.same(&d.addr)
	case fieldID:
		h.ID = d.same(&d.id)
	case fieldProtocolVersion:
		h.ProtocolVersion = hraft.ProtocolVersion(d.int())
	default:
		d.skip()
	}
}

// byte reads the first byte of a value.
func (d *decoder) byte() byte {
	if d.err != nil || !d.spend(1) {
		return 0xc1 // which msgpack does not use
	}
	c, err := d.r.ReadByte()
	if err != nil {
		d.broke(err)
		return 0xc1
	}
	return c
}

// peek returns n bytes, of at most some hundred. They count until the next read.
func (d *decoder) peek(n int) []byte {
	if d.err != nil || !d.spend(int64(n)) {
		return nil
	}
	b, err := d.r.Peek(n)
	if err != nil {
		d.broke(err)
		return nil
	}
	_, _ = d.r.Discard(n) // they are there
	return b
}

// number reads n bytes, the most significant first.
func (d *decoder) number(n int) (v uint64) {
	for _, c := range d.peek(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

// wrong tells of a value's first byte that may not stand where it does.
func (d *decoder) wrong(c byte) { d.fail("byte %#x where it may not stand", c) }

// pairs is the number of a map's pairs, by its first byte.
func (d *decoder) pairs(c byte) int {
	n := uint64(0)
	switch {
	case c >= 0x80 && c <= 0x8f:
		n = uint64(c & 0x0f)
	case c == 0xde:
		n = d.number(2)
	case c == 0xdf:
		n = d.number(4)
	default:
		d.wrong(c)
	}
	if n > maxPairs {
		d.fail("a map of %d", n)
	}
	if d.err != nil {
		return 0
	}
	return int(n)
}

// length is that of a string or bytes, by its first byte.
func (d *decoder) length(c byte) int64 {
	switch {
	case c >= 0xa0 && c <= 0xbf:
		return int64(c & 0x1f)
	case c == 0xc4 || c == 0xd9:
		return int64(d.number(1))
	case c == 0xc5 || c == 0xda:
		return int64(d.number(2))
	case c == 0xc6 || c == 0xdb:
		return int64(d.number(4))
	}
	d.wrong(c)
	return 0
}

// text reads an answer's error.
func (d *decoder) text() string {
	c := d.byte()
	if c >= 0xc4 && c <= 0xc6 {
		d.wrong(c)
	}
	n := d.length(c)
	if n > maxError {
		d.fail("an error of %d bytes", n)
	}
	return string(d.take(n))
}

func (d *decoder) bytes() []byte {
	c := d.byte()
	if c == 0xc0 {
		return nil
	}
	return d.take(d.length(c))
}

// same reads bytes that are likely the same as the last time.
func (d *decoder) same(last *[]byte) []byte {
	c := d.byte()
	if c == 0xc0 {
		return nil
	}
	n := d.length(c)
	if n == 0 || n > maxSame || int(n) != len(*last) {
		b := d.take(n)
		if n > 0 && n <= maxSame {
			*last = b
		}
		return b
	}
	if b := d.peek(int(n)); d.err == nil && !bytes.Equal(b, *last) {
		*last = bytes.Clone(b)
	}
	return *last
}

// take reads n bytes, which have room of their own.
func (d *decoder) take(n int64) []byte {
	if d.err != nil || !d.spend(n) {
		return nil
	}
	b := make([]byte, min(n, believed))
	for got := 0; ; {
		if _, err := io.ReadFull(d.r, b[got:]); err != nil {
			d.broke(err)
			return nil
		}
		if int64(len(b)) == n {
			return b
		}
		got = len(b)
		more := make([]byte, min(n, 4*int64(got)))
		copy(more, b)
		b = more
	}
}

func (d *decoder) bool() bool {
	switch c := d.byte(); c {
	case 0xc3, 1:
		return true
	case 0xc2, 0, 0xc0:
	default:
		d.wrong(c)
	}
	return false
}

// integer reads a whole number of any code: its 64 bits, and whether it is below
// zero. nil is 0.
func (d *decoder) integer() (v uint64, negative bool) {
	switch c := d.byte(); {
	case c <= 0x7f:
		return uint64(c), false
	case c >= 0xe0:
		return uint64(int64(int8(c))), true
	case c == 0xc0:
	case c >= 0xcc && c <= 0xcf:
		return d.number(1 << (c - 0xcc)), false
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		shift := 64 - 8*n
		i := int64(d.number(n)<<shift) >> shift
		return uint64(i), i < 0
	default:
		d.wrong(c)
	}
	return 0, false
}

func (d *decoder) uint() uint64 {
	v, negative := d.integer()
	if negative {
		d.fail("%d where nothing below 0 may stand", int64(v))
	}
	return v
}

func (d *decoder) int() int64 {
	v, negative := d.integer()
	if !negative && v > math.MaxInt64 {
		d.fail("%d where it is too much", v)
	}
	return int64(v)
}

// time reads what time.Time.MarshalBinary has made, or one of msgpack's own
// times, of 4, 8 or 12 bytes.
func (d *decoder) time() (t time.Time) {
	n, c := int64(0), d.byte()
	switch c {
	case 0xc0:
		return t
	case 0xd6:
		n = 4
	case 0xd7:
		n = 8
	case 0xc7:
		n = int64(d.number(1))
	default:
		n = d.length(c)
	}
	if c == 0xd6 || c == 0xd7 || c == 0xc7 {
		if tag := int8(d.number(1)); tag != -1 {
			d.fail("a time of type %d", tag)
		}
	}
	if n > 16 {
		d.fail("a time of %d bytes", n)
		return t
	}
	b := d.peek(int(n))
	if d.err != nil {
		return t
	}
	switch n {
	case 4:
		return time.Unix(int64(binary.BigEndian.Uint32(b)), 0).UTC()
	case 8:
		v := binary.BigEndian.Uint64(b)
		return time.Unix(int64(v&(1<<34-1)), int64(v>>34)).UTC()
	case 12:
		return time.Unix(int64(binary.BigEndian.Uint64(b[4:])), int64(binary.BigEndian.Uint32(b))).UTC()
	}
	if err := t.UnmarshalBinary(b); err != nil {
		d.fail("a time of %d bytes: %v", n, err)
	}
	return t
}

// skip goes over a plain value.
func (d *decoder) skip() {
	n := int64(0)
	switch c := d.byte(); {
	case c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
	case c == 0xca:
		n = 4
	case c == 0xcb:
		n = 8
	case c >= 0xcc && c <= 0xcf:
		n = 1 << (c - 0xcc)
	case c >= 0xd0 && c <= 0xd3:
		n = 1 << (c - 0xd0)
	case c >= 0xd4 && c <= 0xd8: // extensions, and their type
		n = 1 + 1<<(c-0xd4)
	case c >= 0xc7 && c <= 0xc9:
		n = 1 + int64(d.number(1<<(c-0xc7)))
	default:
		n = d.length(c)
	}
	if d.err != nil || !d.spend(n) {
		return
	}
	if _, err := d.r.Discard(int(n)); err != nil {
		d.broke(err)
	}
}

// field is a name that a map of some message has.
type field byte

const (
	fieldUnknown field = iota
	fieldAddr
	fieldAppendedAt
	fieldCandidate
	fieldConfiguration
	fieldConfigurationIndex
	fieldData
	fieldEntries
	fieldExtensions
	fieldGranted
	fieldID
	fieldIndex
	fieldLastLog
	fieldLastLogIndex
	fieldLastLogTerm
	fieldLeader
	fieldLeaderCommitIndex
	fieldLeadershipTransfer
	fieldNoRetryBackoff
	fieldPeers
	fieldPrevLogEntry
	fieldPrevLogTerm
	fieldProtocolVersion
	fieldSize
	fieldSnapshotVersion
	fieldSuccess
	fieldTerm
	fieldType
)

// field reads a name.
func (d *decoder) field() field {
	c := d.byte()
	if c >= 0xc4 && c <= 0xc6 {
		d.wrong(c)
	}
	n := d.length(c)
	if n > maxName {
		d.fail("a name of %d bytes", n)
		return fieldUnknown
	}
	switch string(d.peek(int(n))) {
	case "Addr":
		return fieldAddr
	case "AppendedAt":
		return fieldAppendedAt
	case "Candidate":
		return fieldCandidate
	case "Configuration":
		return fieldConfiguration
	case "ConfigurationIndex":
		return fieldConfigurationIndex
	case "Data":
		return fieldData
	case "Entries":
		return fieldEntries
	case "Extensions":
		return fieldExtensions
	case "Granted":
		return fieldGranted
	case "ID":
		return fieldID
	case "Index":
		return fieldIndex
	case "LastLog":
		return fieldLastLog
	case "LastLogIndex":
		return fieldLastLogIndex
	case "LastLogTerm":
		return fieldLastLogTerm
	case "Leader":
		return fieldLeader
	case "LeaderCommitIndex":
		return fieldLeaderCommitIndex
	case "LeadershipTransfer":
		return fieldLeadershipTransfer
	case "NoRetryBackoff":
		return fieldNoRetryBackoff
	case "Peers":
		return fieldPeers
	case "PrevLogEntry":
		return fieldPrevLogEntry
	case "PrevLogTerm":
		return fieldPrevLogTerm
	case "ProtocolVersion":
		return fieldProtocolVersion
	case "Size":
		return fieldSize
	case "SnapshotVersion":
		return fieldSnapshotVersion
	case "Success":
		return fieldSuccess
	case "Term":
		return fieldTerm
	case "Type":
		return fieldType
	}
	return fieldUnknown
}
