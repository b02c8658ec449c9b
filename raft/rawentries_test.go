package raft

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"pgregory.net/rapid"
)

// seallog returns l as it is in the Raft log, with its sum.
func seallog(l *hraft.Log) *hraft.Log {
	c := *l
	c.Extensions = binary.BigEndian.AppendUint32(nil, logSum(l))
	return &c
}

// TestRawAsRaftWAL: an entry is encoded here as raft-wal would encode it, to the
// byte, and in no more room than is made for it.
func TestRawAsRaftWAL(t *testing.T) {
	zones := []*time.Location{time.UTC, time.Local, time.FixedZone("", 5400), time.FixedZone("", -3601)}
	rapid.Check(t, func(t *rapid.T) {
		l := &hraft.Log{
			Index: rapid.Uint64().Draw(t, "index"),
			Term:  rapid.Uint64().Draw(t, "term"),
			Type:  hraft.LogType(rapid.Byte().Draw(t, "type")),
			Data:  rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
		}
		if rapid.Bool().Draw(t, "dated") {
			at := time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), rapid.Int64Range(0, 1e9-1).Draw(t, "ns"))
			l.AppendedAt = at.In(rapid.SampledFrom(zones).Draw(t, "zone"))
		}
		var want bytes.Buffer
		if err := (&wal.BinaryCodec{}).Encode(seallog(l), &want); err != nil {
			t.Fatal(err)
		}
		before := []byte("before")
		got, err := appendRaw(before, l)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, append(before, want.Bytes()...)) {
			t.Errorf("%x, want %x", got[len(before):], want.Bytes())
		}
		if more := want.Len() - len(l.Data); more > rawMore {
			t.Errorf("%d bytes beside the data, more than %d", more, rawMore)
		}
		if err := checkRaw(l.Index, got[len(before):]); err != nil {
			t.Error(err)
		}
	})
}
