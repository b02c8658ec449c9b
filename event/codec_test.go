package event

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"pgregory.net/rapid"
)

// same compares two values; an empty list is no list.
func same(t require.T, what string, got, want any) {
	t.Helper()
	if !equal(reflect.ValueOf(got), reflect.ValueOf(want)) { // cmp alone takes long
		require.Equal(t, cmp.Diff(want, got, cmpopts.EquateEmpty()), "",
			"%s: decoded (+), was (-)", what)
	}
}

// equal compares values of the kinds that TestTypes admits.
func equal(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || equal(a.Elem(), b.Elem()))
	case reflect.Struct:
		for i := range a.NumField() {
			if !equal(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		for i := range min(a.Len(), b.Len()) {
			if !equal(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return a.Len() == b.Len()
	}
	return a.Equal(b)
}

// anything makes values of T by reflection, within the ranges of the enums.
func anything[T any]() *rapid.Generator[T] {
	small := func(of any, n int) (reflect.Type, *rapid.Generator[any]) {
		typ := reflect.TypeOf(of)
		return typ, rapid.Custom(func(t *rapid.T) any {
			return reflect.ValueOf(rapid.IntRange(0, n-1).Draw(t, typ.Name())).Convert(typ).Interface()
		})
	}
	types := map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeOf(Blob{}): rapid.Custom(func(t *rapid.T) any {
			return EncodeContent(&Content{Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload")})
		}),
	}
	for of, n := range map[any]int{
		Ordering(0): len(orderingNames), OnRetry(0): len(onRetryNames), OnDead(0): len(onDeadNames), DedupBy(0): len(dedupByNames),
		OnExpired(0): len(onExpiredNames), DedupUntil(0): len(dedupUntilNames),
		Type(0): len(typeNames), Reason(0): len(reasonNames), Place(0): int(PlaceTail) + 1, SettleOp(0): int(OpRelease) + 1,
	} {
		typ, g := small(of, n)
		types[typ] = g
	}
	return rapid.MakeCustom[T](rapid.MakeConfig{Types: types})
}

// roundTrip checks that whatever value of T comes back as it was, and encodes to the same
// bytes. omit clears what is not encoded.
func (c codec[T]) roundTrip(t *testing.T, omit func(*T)) {
	t.Run(c.file, func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			v := anything[T]().Draw(rt, c.file)
			omit(&v)
			b := c.encode(&v)
			got, err := c.decode(b)
			must(rt, err)
			same(rt, c.file, got, &v)
			require.EqualSlices(rt, c.encode(got), b, "other bytes")
		})
	})
}

func TestRoundTrips(t *testing.T) {
	commandCodec.roundTrip(t, func(*Command) {})
	headerCodec.roundTrip(t, func(e *Event) { // the record carries these
		e.ID, e.Subject, e.Prev, e.Alias, e.Content = ID{}, ID{}, Ref{}, Hash{}, Blob{}
	})
	contentCodec.roundTrip(t, func(*Content) {})
	resultCodec.roundTrip(t, func(s *Result) { // of a kept answer
		s.Problem, s.Kept, s.Leased, s.Digest = nil, Ref{}, nil, [16]byte{}
	})
	policyCodec.roundTrip(t, func(*Policy) {})
	entryCodec.roundTrip(t, func(*Entry) {})
	answersCodec.roundTrip(t, func(all *[]Answer) { // what no lease says
		*all = (*all)[:min(len(*all), 15)] // as many as the codec knows
		for _, a := range *all {
			for i := range a.Result.Leased {
				m := &a.Result.Leased[i]
				if m.SourceID = ""; m.Dead != nil {
					m.Dead.First = ID{}
				}
			}
		}
	})
}

// TestOtherVersions: what another program wrote is refused in the right words.
func TestOtherVersions(t *testing.T) {
	decoders := map[string]struct {
		good   []byte
		decode func([]byte) error
	}{
		"command":      {EncodeCommand(&Command{}), func(b []byte) error { return (&Command{}).Decode(b) }},
		"event header": {AppendHeader(nil, &Event{Type: Acked}), func(b []byte) error { return DecodeHeader(b, &Event{}) }},
		"content":      {EncodeContent(&Content{Error: "e"}).Bytes, func(b []byte) error { _, err := DecodeContent(b); return err }},
		"result":       {EncodeResult(&Result{}), func(b []byte) error { _, err := DecodeResult(b); return err }},
		"policy":       {EncodePolicy(&Policy{}), func(b []byte) error { _, err := DecodePolicy(b); return err }},
		"entry":        {(&Entry{}).Encode(), func(b []byte) error { _, err := DecodeEntry(b); return err }},
	}
	for name, d := range decoders {
		assert.NoError(t, d.decode(d.good), "%s", name)
		newer := append([]byte{2}, d.good[1:]...)
		if err := d.decode(newer); err == nil || err.Error() != name+": version 2 is not this program's 1" {
			t.Errorf("%s of a newer version: %v", name, err)
		}
		if err := d.decode(append(append([]byte(nil), d.good...), 0)); err == nil || !strings.Contains(err.Error(), "1 bytes") {
			t.Errorf("%s with a byte too many: %v", name, err)
		}
		for n := range d.good {
			if n == 0 && name == "content" {
				continue // nothing is no content
			}
			if err := d.decode(d.good[:n]); err == nil {
				t.Errorf("%s cut at %d: no error", name, n)
			}
		}
	}
}

// TestUnknownFields: a node that does not know a field stops rather than guesses.
func TestUnknownFields(t *testing.T) {
	header := func(fields string) error {
		return DecodeHeader([]byte("\x01"+fields), &Event{})
	}
	for fields, want := range map[string]string{
		"\x82\xa1a\x0b\xa1~\x01":        `unknown or misplaced field "~"`,
		"\x82\xa1b\xa1q\xa1a\x01":       `unknown or misplaced field "a"`,
		"\x82\xa1a\x0b\xa1a\x0b":        `unknown or misplaced field "a"`,
		"\x81\xa1a\x7f":                 "event header: event type 127 is not known",
		"\x81\xa1f\xcd\x01\x00":         "256 is out of range",
		"\x81\xa1b\xa1\xff":             "a string is not UTF-8",
		"\x81\xa1f\x00":                 "not encoded as this program does",
		"\xc0":                          "not encoded as this program does",
		"\x81\xa1F\x91\x92\xcc\x01\x01": "not encoded as this program does",
		"\x81\xa1b\xc4\x01q":            "not encoded as this program does",
		"\x81\xa1l\xc4\x01\x00":         "event header: 1 bytes in place of 16",
		"\x81\xa1y\x81\xa1x\x01":        `unknown field "x"`,
		"\x81\xa1y\x81\xa8Ordering\x07": "policy with an unknown ordering",
	} {
		if err := header(fields); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", fields, err, want)
		}
	}
	if (&Command{}).Decode([]byte("\x01\x81\xa1~\x80")) == nil {
		t.Error("a command of a newer program is accepted")
	}
}

// TestTypes: what is encoded has no map, no interface and no float, whose bytes could differ
// between nodes.
func TestTypes(t *testing.T) {
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Map, reflect.Interface, reflect.Float32, reflect.Float64, reflect.Chan, reflect.Func:
			t.Errorf("%s is a %s", path, typ.Kind())
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(path, typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				walk(path+"."+typ.Field(i).Name, typ.Field(i).Type)
			}
		}
	}
	for _, v := range []any{Command{}, Event{}, Content{}, Entry{}, Answer{}, Policy{}} {
		walk(reflect.TypeOf(v).Name(), reflect.TypeOf(v))
	}
}

func TestNames(t *testing.T) {
	for i, n := range typeNames[1:] {
		if got, ok := Parse[Type](n); !ok || int(got) != i+1 || got.String() != n {
			t.Errorf("type %q is %d %v", n, got, ok)
		}
	}
	for s := StateScheduled; s <= StateReplayed; s++ {
		if got, ok := Parse[State](s.String()); !ok || got != s {
			t.Errorf("state %s", s)
		}
	}
	if v, _ := Parse[Type](""); v != TypeNone || Type(200).String() != "unknown" || State(200).String() != "unknown" || Reason(200).String() != "unknown" {
		t.Error("what is unknown has a name")
	}
	for _, s := range []string{"a", "A.b_c-9", strings.Repeat("x", 128)} {
		assert.True(t, ValidName(s), "%q is refused", s)
	}
	for _, s := range []string{"", ".", "..", "-a", "_a", "a/b", "a b", "a\x00", "é", strings.Repeat("x", 129), "a\n"} {
		assert.False(t, ValidName(s), "%q is taken", s)
		assert.False(t, ValidNode(s), "%q is taken for a node", s)
	}
	for s, want := range map[string]bool{"n1": true, "Host-1.b_c": true, strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, "n1/01K9": false, "n1?voter=true": false} {
		assert.Equal(t, ValidNode(s), want, "a node called %q: taken %v", s, !want)
	}
}
