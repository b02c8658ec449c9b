package event

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

func sampleLeased() LeasedMessage {
	return LeasedMessage{MaxAttempts: 5, MessageView: MessageView{
		ID: idOf(1), Queue: "q", Key: "k", Kind: "red", State: StateLeased, Held: true, Priority: 5, Attempt: 2, Size: 70,
		EnqueuedAt: 1_700_000_000_001, Due: 1_700_000_000_002, Expires: 1_700_000_000_003, Lease: idOf(2), LeaseExpiresAt: 1_700_000_000_004,
		Content: Ref{42, 1}, Last: Ref{43, 2},
		Dead: &DeadView{Queue: "q", MessageID: idOf(3), Reason: ReasonRejected, Attempts: 5, FailedAt: 1_700_000_000_005, FirstEnqueuedAt: 1_700_000_000_000, ReplayCount: 1},
	}}
}

func sampleAnswers() map[string]*[]Answer {
	return map[string]*[]Answer{
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
}

func TestGoldenAnswers(t *testing.T) {
	answers := sampleAnswers()
	names, out := encodeAll(answers, func(a *[]Answer) []byte { return EncodeAnswers(*a) })
	golden(t, "answers", names, out)
	for n, a := range answers {
		got, err := DecodeAnswers(out[n], len(*a))
		require.NoError(t, err, "%s", n)
		same(t, n, got, *a)
		if _, err := DecodeAnswers(out[n], len(*a)+1); err == nil {
			t.Errorf("%s: taken for one command more", n)
		}
	}
}

func FuzzDecodeAnswers(f *testing.F) {
	want := func(b []byte) int { // as many as are claimed, within reason
		if len(b) > 5 && b[4] == 1 && b[5]&0xf0 == 0x90 {
			return int(b[5] & 0x0f)
		}
		return 0
	}
	fuzz(f, "answers", func(b []byte) ([]Answer, error) { return DecodeAnswers(b, want(b)) }, EncodeAnswers)
}

func TestGoldenGroups(t *testing.T) {
	purge := EncodeCommand(&Command{PurgeQueue: &PurgeQueue{Name: "q"}})
	groups := map[string]*[]Forwarded{
		"one":     {{Class: ClassSettle, Weight: 1, Data: purge}},
		"several": {{Class: ClassBackground, Weight: 1 << 31, Data: purge}, {Class: ClassProduce, Weight: 100, Data: []byte{Version}}},
	}
	encode := func(g *[]Forwarded) []byte { return AppendGroup([]byte("before"), *g)[len("before"):] }
	names, out := encodeAll(groups, encode)
	golden(t, "groups", names, out)
	for n, g := range groups {
		got, err := DecodeGroup(out[n], 2, len(purge))
		require.NoError(t, err, "%s", n)
		same(t, n, got, *g)
		if len(out[n]) != GroupSize(*g) {
			t.Errorf("%s: %d bytes, foretold %d", n, len(out[n]), GroupSize(*g))
		}
		for i := range out[n] {
			if _, err := DecodeGroup(out[n][:i], 2, 1000); err == nil {
				t.Errorf("%s cut at %d is taken", n, i)
			}
			flipped := bytes.Clone(out[n])
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
	fuzz(f, "groups", func(b []byte) ([]Forwarded, error) {
		if len(b) >= groupTail { // else hardly anything would pass
			b = binary.BigEndian.AppendUint32(b[:len(b)-groupTail:len(b)-groupTail], crc32.Checksum(b[:len(b)-groupTail], castagnoli))
		}
		return DecodeGroup(b, 1000, 1<<20)
	}, func(g []Forwarded) []byte { return AppendGroup(nil, g) })
}
