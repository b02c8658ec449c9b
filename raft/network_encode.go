package raft

//lint:file-ignore SA1019 what hashicorp/raft calls deprecated it still sends, and older nodes read it

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// encoder writes messages: in one Write where they are not large.
type encoder struct {
	w   io.Writer
	b   []byte
	err error // of w
}

const (
	// gathered is when bytes are written that have been gathered: so much is kept
	// for the next message, and twice that at most.
	gathered = 256 << 10
	// uncopied is from where on it costs less to write bytes by themselves than to
	// gather them.
	uncopied = 256 << 10
)

// encoders are kept, because their buffers grow as large as a message.
var encoders = sync.Pool{New: func() any { return &encoder{} }}

// send writes one message to w.
func send(w io.Writer, message func(*encoder)) error {
	e := encoders.Get().(*encoder)
	e.w = w
	message(e)
	e.flush()
	err := e.err
	*e = encoder{b: e.b}
	encoders.Put(e)
	return err
}

func (e *encoder) flush() {
	if e.err == nil && len(e.b) > 0 {
		_, e.err = e.w.Write(e.b)
	}
	e.b = e.b[:0]
}

// request appends a request, which is one of hashicorp/raft's.
func (e *encoder) request(args any) {
	switch m := args.(type) {
	case *hraft.AppendEntriesRequest:
		e.kind(rpcAppendEntries, 9)
		e.bytes("Addr", m.Addr)
		e.entries(m.Entries)
		e.bytes("ID", m.ID)
		e.bytes("Leader", m.Leader)
		e.uint("LeaderCommitIndex", m.LeaderCommitIndex)
		e.uint("PrevLogEntry", m.PrevLogEntry)
		e.uint("PrevLogTerm", m.PrevLogTerm)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.uint("Term", m.Term)
	case *hraft.RequestVoteRequest:
		e.kind(rpcRequestVote, 8)
		e.bytes("Addr", m.Addr)
		e.bytes("Candidate", m.Candidate)
		e.bytes("ID", m.ID)
		e.uint("LastLogIndex", m.LastLogIndex)
		e.uint("LastLogTerm", m.LastLogTerm)
		e.bool("LeadershipTransfer", m.LeadershipTransfer)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.uint("Term", m.Term)
	case *hraft.InstallSnapshotRequest:
		e.kind(rpcInstallSnapshot, 12)
		e.bytes("Addr", m.Addr)
		e.bytes("Configuration", m.Configuration)
		e.uint("ConfigurationIndex", m.ConfigurationIndex)
		e.bytes("ID", m.ID)
		e.uint("LastLogIndex", m.LastLogIndex)
		e.uint("LastLogTerm", m.LastLogTerm)
		e.bytes("Leader", m.Leader)
		e.bytes("Peers", m.Peers)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.int("Size", m.Size)
		e.int("SnapshotVersion", int64(m.SnapshotVersion))
		e.uint("Term", m.Term)
	case *hraft.TimeoutNowRequest:
		e.kind(rpcTimeoutNow, 3)
		e.header(&m.RPCHeader)
	case *hraft.RequestPreVoteRequest:
		e.kind(rpcRequestPreVote, 6)
		e.bytes("Addr", m.Addr)
		e.bytes("ID", m.ID)
		e.uint("LastLogIndex", m.LastLogIndex)
		e.uint("LastLogTerm", m.LastLogTerm)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.uint("Term", m.Term)
	default:
		e.fail(fmt.Errorf("no request of Raft: %T", args))
	}
}

// answer appends an answer: response is one of hashicorp/raft's, or nil.
func (e *encoder) answer(response any, err error) {
	text := ""
	if err != nil {
		text = err.Error()
		text = text[:min(len(text), maxError)]
	}
	e.b = append(e.raw(len(text)), text...)
	switch m := response.(type) {
	case nil:
		e.b = append(e.b, 0xc0)
	case *hraft.AppendEntriesResponse:
		e.pairs(7)
		e.bytes("Addr", m.Addr)
		e.bytes("ID", m.ID)
		e.uint("LastLog", m.LastLog)
		e.bool("NoRetryBackoff", m.NoRetryBackoff)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.bool("Success", m.Success)
		e.uint("Term", m.Term)
	case *hraft.RequestVoteResponse:
		e.pairs(6)
		e.bytes("Addr", m.Addr)
		e.bool("Granted", m.Granted)
		e.bytes("ID", m.ID)
		e.bytes("Peers", m.Peers)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.uint("Term", m.Term)
	case *hraft.InstallSnapshotResponse:
		e.pairs(5)
		e.header(&m.RPCHeader)
		e.bool("Success", m.Success)
		e.uint("Term", m.Term)
	case *hraft.TimeoutNowResponse:
		e.pairs(3)
		e.header(&m.RPCHeader)
	case *hraft.RequestPreVoteResponse:
		e.pairs(5)
		e.bytes("Addr", m.Addr)
		e.bool("Granted", m.Granted)
		e.bytes("ID", m.ID)
		e.int("ProtocolVersion", int64(m.ProtocolVersion))
		e.uint("Term", m.Term)
	default:
		e.fail(fmt.Errorf("no answer of Raft: %T", response))
	}
}

// fail ends the message: what was not written yet is not.
func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) kind(t rpcType, pairs int) {
	e.b = append(e.b, byte(t))
	e.pairs(pairs)
}

// pairs begins a map of fewer than 16.
func (e *encoder) pairs(n int) { e.b = append(e.b, 0x80|byte(n)) }

func (e *encoder) name(s string) { e.b = append(append(e.b, 0xa0|byte(len(s))), s...) }

// header appends the three fields of one where no others stand between them.
func (e *encoder) header(h *hraft.RPCHeader) {
	e.bytes("Addr", h.Addr)
	e.bytes("ID", h.ID)
	e.int("ProtocolVersion", int64(h.ProtocolVersion))
}

func (e *encoder) bool(name string, v bool) {
	e.name(name)
	if v {
		e.b = append(e.b, 0xc3)
	} else {
		e.b = append(e.b, 0xc2)
	}
}

func (e *encoder) uint(name string, v uint64) {
	e.name(name)
	switch {
	case v <= math.MaxInt8:
		e.b = append(e.b, byte(v))
	case v <= math.MaxUint8:
		e.b = append(e.b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		e.b = binary.BigEndian.AppendUint16(append(e.b, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		e.b = binary.BigEndian.AppendUint32(append(e.b, 0xce), uint32(v))
	default:
		e.b = binary.BigEndian.AppendUint64(append(e.b, 0xcf), v)
	}
}

// int appends a number of a signed type: those have codes of their own, also
// where they are positive.
func (e *encoder) int(name string, v int64) {
	e.name(name)
	switch {
	case v >= -32 && v <= math.MaxInt8:
		e.b = append(e.b, byte(v))
	case v >= math.MinInt8 && v <= math.MaxInt8:
		e.b = append(e.b, 0xd0, byte(v))
	case v >= math.MinInt16 && v <= math.MaxInt16:
		e.b = binary.BigEndian.AppendUint16(append(e.b, 0xd1), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		e.b = binary.BigEndian.AppendUint32(append(e.b, 0xd2), uint32(v))
	default:
		e.b = binary.BigEndian.AppendUint64(append(e.b, 0xd3), uint64(v))
	}
}

// raw begins a string or bytes.
func (e *encoder) raw(n int) []byte {
	switch {
	case n < 32:
		return append(e.b, 0xa0|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(e.b, 0xda), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(e.b, 0xdb), uint32(n))
}

func (e *encoder) bytes(name string, v []byte) {
	e.name(name)
	if v == nil {
		e.b = append(e.b, 0xc0)
		return
	}
	e.b = e.raw(len(v))
	if len(v) < uncopied {
		e.b = append(e.b, v...)
		return
	}
	e.flush()
	if e.err == nil {
		_, e.err = e.w.Write(v)
	}
}

func (e *encoder) entries(logs []*hraft.Log) {
	e.name("Entries")
	switch n := len(logs); {
	case logs == nil:
		e.b = append(e.b, 0xc0)
	case n < 16:
		e.b = append(e.b, 0x90|byte(n))
	case n <= maxEntries:
		e.b = binary.BigEndian.AppendUint16(append(e.b, 0xdc), uint16(n))
	default:
		e.fail(fmt.Errorf("%d entries in one request", n))
		return
	}
	for _, l := range logs {
		if len(e.b) >= gathered {
			e.flush()
		}
		e.pairs(6)
		e.time("AppendedAt", l.AppendedAt)
		e.bytes("Data", l.Data)
		e.bytes("Extensions", l.Extensions)
		e.uint("Index", l.Index)
		e.uint("Term", l.Term)
		e.uint("Type", uint64(l.Type))
	}
}

// time appends at most 16 bytes of time. One that cannot be written (its zone is
// of no whole minutes, or too far away) is none: nothing rests on it.
func (e *encoder) time(name string, t time.Time) {
	e.name(name)
	at := len(e.b)
	b, err := t.AppendBinary(append(e.b, 0))
	if err != nil {
		e.b = append(e.b[:at], 0xc0)
		return
	}
	b[at] = 0xa0 | byte(len(b)-at-1)
	e.b = b
}
