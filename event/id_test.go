package event

import (
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/require"
	"pgregory.net/rapid"
)

func TestIDLayout(t *testing.T) {
	id := NewID(0x0102_0304_0506, 0x0708_090a_0b0c, 0x0d0e0f)
	want := ID{1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf}
	require.Equal(t, id, want)
	require.Equal(t, NewID(1_700_000_000_000, 42, 7).String(), "01HF7YAT000000000000N00007")
	for _, bad := range []func(){
		func() { NewID(-1, 0, 0) }, func() { NewID(1<<48, 0, 0) }, func() { NewID(0, 1<<48, 0) }, func() { NewID(0, 0, MaxNumber+1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("an id out of range was made")
				}
			}()
			bad()
		}()
	}
}

// TestIDs: an id says where its event lies, and ids order as the log does, in
// bytes and in letters.
func TestIDs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := rapid.Int64Range(0, 1<<48-1)
		index := rapid.Uint64Range(0, 1<<48-1)
		number := rapid.Uint32Range(0, MaxNumber)
		c, i, n := clock.Draw(rt, "clock"), index.Draw(rt, "index"), number.Draw(rt, "number")
		id := NewID(c, i, n)
		if ClockOf(id) != c || RefOf(id) != (Ref{i, n}) {
			rt.Fatalf("%d %v", ClockOf(id), RefOf(id))
		}
		back, err := ParseID(id.String())
		if err != nil || back != id {
			rt.Fatal(back, err)
		}
		// The clock never goes back, the index rises, the number counts.
		c2 := min(1<<48-1, c+rapid.Int64Range(0, 5).Draw(rt, "later"))
		var next ID
		switch {
		case rapid.Bool().Draw(rt, "same entry") && n < MaxNumber:
			next = NewID(c, i, n+1)
		case i < 1<<48-1:
			next = NewID(c2, i+1, number.Draw(rt, "number"))
		default:
			return
		}
		if id.Compare(next) >= 0 || id.String() >= next.String() {
			rt.Fatalf("%s is not before %s", id, next)
		}
	})
}

func TestParseID(t *testing.T) {
	for _, s := range []string{"", "x", "01HF7YAT000000000000N0000", "01HF7YAT000000000000N000077", "01HF7YAT000000000000N0000U", "81HF7YAT000000000000N00007", "01HF7YAT000000000000N0000é"} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q is %s", s, id)
		}
	}
	if id, err := ParseID("01hf7yat000000000000n00007"); err != nil || id != NewID(1_700_000_000_000, 42, 7) {
		t.Error(id, err)
	}
}

func TestParseInstant(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).UnixMilli()
	id := NewID(1_700_000_000_000, 42, 7)
	for s, want := range map[string]Instant{
		"start":                          {Kind: InstantStart},
		"now":                            {Kind: InstantNow, Time: now},
		"index:0":                        {Kind: InstantIndex},
		"index:12":                       {Kind: InstantIndex, Index: 12},
		"index:281474976710655":          {Kind: InstantIndex, Index: 1<<48 - 1},
		id.String():                      {Kind: InstantID, ID: id, Index: 42},
		"01hf7yat000000000000n00007":     {Kind: InstantID, ID: id, Index: 42},
		"2026-07-01T12:00:00Z":           {Kind: InstantTime, Time: now},
		"2026-07-01T12:00:00.250Z":       {Kind: InstantTime, Time: now + 250},
		"2026-07-01T14:00:00.25+02:00":   {Kind: InstantTime, Time: now + 250},
		"2026-07-01T12:00:00.123456789Z": {Kind: InstantTime, Time: now + 123},
		"15m":                            {Kind: InstantTime, Time: now - 15*60_000},
		"1h30m":                          {Kind: InstantTime, Time: now - 90*60_000},
		"250ms":                          {Kind: InstantTime, Time: now - 250},
		"0s":                             {Kind: InstantTime, Time: now},
		"7d":                             {Kind: InstantTime, Time: now - 7*24*3600_000},
	} {
		if got, err := ParseInstant(s, now); err != nil || got != want {
			t.Errorf("%q is %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "-15m", "yesterday", "index:", "index:-1", "index:1.5", "index:281474976710656", "2026-07-01", "12:00", "15", "START", "01HF7YAT000000000000N0000", " now"} {
		if got, err := ParseInstant(s, now); err == nil {
			t.Errorf("%q is %+v", s, got)
		}
	}
}
