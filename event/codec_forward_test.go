package event

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
)

func sampleLeased() LeasedMessage {
	return LeasedMessage{MaxAttempts: 5, MessageView: MessageView{
		ID: idOf(1), Queue: "q", Key: "k", Kind: "red", State: StateLeased, Held: true, Priority: 5, Attempt: 2, Size: 70,
		EnqueuedAt: 1_700_000_000_001, Due: 1_700_000_000_002, Expires: 1_700_000_000_003, Lease: idOf(2), LeaseExpiresAt: 1_700_000_000_004,
		Content: Ref{42, 1}, Last: Ref{43, 2},
		Dead: &DeadView{Queue: "q", MessageID: idOf(3), Reason: ReasonRejected, Attempts: 5, FailedAt: 1_700_000_000_005, FirstEnqueuedAt: 1_700_000_000_000, ReplayCount: 1},
	}}
}

func TestGoldenAnswers(t *testing.T) {
	answers := map[string]*[]Answer{
		"nothing": {},
		"one":     {{Result: Result{Index: 42, Created: true}}},
		"several": {
			{Result: Result{Index: 42, Count: 1000, Kept: Ref{41, 3}}},
			{Result: Result{Index: 42, Produced: []Produced{{ID: idOf(1)}, {ID: idOf(2), Duplicate: true}}}},
			{Result: Result{Index: 42, Settled: []Settled{
				{Lease: idOf(1), Status: StatusAcked, Message: idOf(3), Queue: "q"},
				{Lease: idOf(4), Status: StatusRetried, NextAt: 1_700_000_000_001, ExpiresAt: 1_700_000_000_002, Code: CodeLeaseLost},
			}}},
			{Result: Result{Index: 42, Leased: []LeasedMessage{sampleLeased(), {}}}},
			{Result: Result{Index: 42, Problem: Problemf(CodeQueueFull, "messages", "the queue is full").At(3)}},
			{Refusal: &Problem{Code: "overloaded", Detail: "too many writes wait", Index: -1, RetryAfterMS: 50, QueueDepth: 7, Unknown: true}},
			{Back: true},
			{Result: Result{Index: 42, Digest: [16]byte(hashOf(9))}},
		},
	}
	answersCodec.golden(t, answers)
	for n, a := range answers {
		if _, err := DecodeAnswers(EncodeAnswers(*a), len(*a)+1); err == nil {
			t.Errorf("%s: taken for one command more", n)
		}
	}
}

func TestGoldenGroups(t *testing.T) {
	purge := EncodeCommand(&Command{PurgeQueue: &PurgeQueue{Name: "q"}})
	groups := map[string]*[]Forwarded{
		"one":     {{Class: ClassSettle, Weight: 1, Data: purge}},
		"several": {{Class: ClassBackground, Weight: 1 << 31, Data: purge}, {Class: ClassProduce, Weight: 100, Data: []byte{Version}}},
	}
	c := codec[[]Forwarded]{"groups", func(g *[]Forwarded) []byte {
		return AppendGroup([]byte("before"), *g)[len("before"):]
	}, func(b []byte) (*[]Forwarded, error) {
		g, err := DecodeGroup(b, 2, len(purge))
		return &g, err
	}}
	c.golden(t, groups)
	for n, g := range groups {
		b := c.encode(g)
		if len(b) != GroupSize(*g) {
			t.Errorf("%s: %d bytes, foretold %d", n, len(b), GroupSize(*g))
		}
		for i := range b {
			if _, err := DecodeGroup(b[:i], 2, 1000); err == nil {
				t.Errorf("%s cut at %d is taken", n, i)
			}
			flipped := bytes.Clone(b)
			flipped[i] ^= 4
			if _, err := DecodeGroup(flipped, 2, 1000); err == nil {
				t.Errorf("%s is taken with byte %d flipped", n, i)
			}
		}
	}
}

// TestGroupLimits: what is over a limit is refused, whatever its sum says.
func TestGroupLimits(t *testing.T) {
	ok := Forwarded{Class: ClassProduce, Weight: 1, Data: []byte{Version, 1, 2}}
	for name, c := range map[string]struct {
		group []Forwarded
		want  string
	}{
		"nothing":       {nil, "0 commands"},
		"too many":      {[]Forwarded{ok, ok, ok}, "3 commands"},
		"too large":     {[]Forwarded{{Data: []byte{Version, 1, 2, 3}}}, "has 4 bytes"},
		"no class":      {[]Forwarded{ok, {Class: Classes, Data: ok.Data}}, "class 4"},
		"empty":         {[]Forwarded{{}}, "another version"},
		"other version": {[]Forwarded{{Data: []byte{Version + 1}}}, "another version"},
	} {
		if _, err := DecodeGroup(AppendGroup(nil, c.group), 2, 3); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	claim := func(count, length uint32) []byte {
		b := append([]byte{Version}, 0, 0, 0, 0)
		binary.BigEndian.PutUint32(b[1:], count)
		b = append(b, 0, 0, 0, 0, 1)
		b = binary.BigEndian.AppendUint32(b, length)
		b = append(b, Version)
		return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	}
	for _, b := range [][]byte{claim(1<<32-1, 1), claim(2, 1), claim(1, 1<<32-1), claim(1, 2)} {
		if _, err := DecodeGroup(b, 1<<30, 1<<30); err == nil {
			t.Errorf("%x is taken", b)
		}
	}
}

func FuzzDecodeGroup(f *testing.F) {
	codec[[]Forwarded]{"groups", func(g *[]Forwarded) []byte {
		return AppendGroup(nil, *g)
	}, func(b []byte) (*[]Forwarded, error) {
		if len(b) >= groupTail { // else hardly anything would pass
			b = b[: len(b)-groupTail : len(b)-groupTail]
			b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		}
		g, err := DecodeGroup(b, 1000, 1<<20)
		return &g, err
	}}.fuzz(f)
}
