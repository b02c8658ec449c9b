package raft

//lint:file-ignore SA1019 what hashicorp/raft calls deprecated it still sends

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	hraft "github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// pack is what hashicorp/raft's network writes.
func pack(t rapid.TB, newTime bool, v any) []byte {
	t.Helper()
	var b []byte
	h := &codec.MsgpackHandle{}
	h.TimeNotBuiltin = !newTime
	if err := codec.NewEncoderBytes(&b, h).Encode(v); err != nil {
		t.Fatal(err)
	}
	return b
}

func cat(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = append(b, byte(p))
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

func written(t rapid.TB, message func(*encoder)) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := send(&b, message); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writtenRequest(t rapid.TB, m any) []byte {
	return written(t, func(e *encoder) { e.request(m) })
}

func reading(r io.Reader) *decoder { return &decoder{r: bufio.NewReader(r)} }

// kinds are the requests by their type, and the answers to them.
var kinds = []struct{ request, answer any }{
	{&hraft.AppendEntriesRequest{}, &hraft.AppendEntriesResponse{}},
	{&hraft.RequestVoteRequest{}, &hraft.RequestVoteResponse{}},
	{&hraft.InstallSnapshotRequest{}, &hraft.InstallSnapshotResponse{}},
	{&hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{}},
	{&hraft.RequestPreVoteRequest{}, &hraft.RequestPreVoteResponse{}},
}

func fresh(like any) any { return reflect.New(reflect.TypeOf(like).Elem()).Interface() }

// TestGoldenMessages are bytes that programs in use write and read: they must
// never change.
func TestGoldenMessages(t *testing.T) {
	h := hraft.RPCHeader{ProtocolVersion: 3, ID: []byte("id"), Addr: []byte("ad")}
	for _, c := range []struct {
		m    any
		want string
	}{
		{
			&hraft.AppendEntriesRequest{
				RPCHeader: h, Term: 300, Leader: []byte("l"), PrevLogEntry: 5, PrevLogTerm: 200, LeaderCommitIndex: 1 << 40,
				Entries: []*hraft.Log{
					{Index: 1, Term: 2, Type: 3, Data: []byte("da"), AppendedAt: time.Unix(1, 2).UTC()},
					{Data: bytes.Repeat([]byte("x"), 32), Extensions: []byte{}},
				},
			},
			"\x00\x89\xa4Addr\xa2ad\xa7Entries\x92" +
				"\x86\xaaAppendedAt\xaf\x01\x00\x00\x00\x0ew\x91\xf7\x01\x00\x00\x00\x02\xff\xff\xa4Data\xa2da\xaaExtensions\xc0\xa5Index\x01\xa4Term\x02\xa4Type\x03" +
				"\x86\xaaAppendedAt\xaf\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xa4Data\xda\x00\x20xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\xaaExtensions\xa0\xa5Index\x00\xa4Term\x00\xa4Type\x00" +
				"\xa2ID\xa2id\xa6Leader\xa1l\xb1LeaderCommitIndex\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xacPrevLogEntry\x05\xabPrevLogTerm\xcc\xc8\xafProtocolVersion\x03\xa4Term\xcd\x01\x2c",
		},
		{&hraft.AppendEntriesRequest{}, "\x00\x89\xa4Addr\xc0\xa7Entries\xc0\xa2ID\xc0\xa6Leader\xc0\xb1LeaderCommitIndex\x00\xacPrevLogEntry\x00\xabPrevLogTerm\x00\xafProtocolVersion\x00\xa4Term\x00"},
		{
			&hraft.RequestVoteRequest{RPCHeader: h, Term: 1 << 20, Candidate: []byte("c"), LastLogIndex: 127, LastLogTerm: 128, LeadershipTransfer: true},
			"\x01\x88\xa4Addr\xa2ad\xa9Candidate\xa1c\xa2ID\xa2id\xacLastLogIndex\x7f\xabLastLogTerm\xcc\x80\xb2LeadershipTransfer\xc3\xafProtocolVersion\x03\xa4Term\xce\x00\x10\x00\x00",
		},
		{
			&hraft.InstallSnapshotRequest{RPCHeader: h, SnapshotVersion: 1, Term: 7, Leader: []byte("l"), LastLogIndex: 8, LastLogTerm: 9, Configuration: []byte("conf"), ConfigurationIndex: 6, Size: 200},
			"\x02\x8c\xa4Addr\xa2ad\xadConfiguration\xa4conf\xb2ConfigurationIndex\x06\xa2ID\xa2id\xacLastLogIndex\x08\xabLastLogTerm\x09\xa6Leader\xa1l\xa5Peers\xc0\xafProtocolVersion\x03\xa4Size\xd1\x00\xc8\xafSnapshotVersion\x01\xa4Term\x07",
		},
		{&hraft.TimeoutNowRequest{RPCHeader: h}, "\x03\x83\xa4Addr\xa2ad\xa2ID\xa2id\xafProtocolVersion\x03"},
		{
			&hraft.RequestPreVoteRequest{RPCHeader: h, Term: 4, LastLogIndex: 5, LastLogTerm: 6},
			"\x04\x86\xa4Addr\xa2ad\xa2ID\xa2id\xacLastLogIndex\x05\xabLastLogTerm\x06\xafProtocolVersion\x03\xa4Term\x04",
		},
	} {
		if got := writtenRequest(t, c.m); string(got) != c.want {
			t.Errorf("%T is written as\n%q, not\n%q", c.m, got, c.want)
		}
		if old := pack(t, false, c.m); string(old) != c.want[1:] {
			t.Errorf("the library writes %T as\n%q, not\n%q", c.m, old, c.want[1:])
		}
		got, err := reading(strings.NewReader(c.want)).request(maxRequest)
		if err != nil || !reflect.DeepEqual(got, c.m) {
			t.Errorf("%q is read as %+v, %v", c.want, got, err)
		}
	}
	for _, c := range []struct {
		m    any
		err  error
		want string
	}{
		{&hraft.AppendEntriesResponse{RPCHeader: h, Term: 300, LastLog: 70000, Success: true}, nil,
			"\xa0\x87\xa4Addr\xa2ad\xa2ID\xa2id\xa7LastLog\xce\x00\x01\x11\x70\xaeNoRetryBackoff\xc2\xafProtocolVersion\x03\xa7Success\xc3\xa4Term\xcd\x01\x2c"},
		{&hraft.RequestVoteResponse{RPCHeader: h, Term: 2, Granted: true}, nil,
			"\xa0\x86\xa4Addr\xa2ad\xa7Granted\xc3\xa2ID\xa2id\xa5Peers\xc0\xafProtocolVersion\x03\xa4Term\x02"},
		{&hraft.InstallSnapshotResponse{RPCHeader: h, Term: 3}, errors.New("later"),
			"\xa5later\x85\xa4Addr\xa2ad\xa2ID\xa2id\xafProtocolVersion\x03\xa7Success\xc2\xa4Term\x03"},
		{&hraft.TimeoutNowResponse{RPCHeader: h}, nil, "\xa0\x83\xa4Addr\xa2ad\xa2ID\xa2id\xafProtocolVersion\x03"},
		{&hraft.RequestPreVoteResponse{RPCHeader: h, Term: 9}, nil,
			"\xa0\x85\xa4Addr\xa2ad\xa7Granted\xc2\xa2ID\xa2id\xafProtocolVersion\x03\xa4Term\x09"},
		{nil, errHeld, "\xda\x00\x61this node is not vouched for yet: the others have not said that its directory is not an older one\xc0"},
	} {
		if got := written(t, func(e *encoder) { e.answer(c.m, c.err) }); string(got) != c.want {
			t.Errorf("%T is written as\n%q, not\n%q", c.m, got, c.want)
		}
		var into any = &hraft.AppendEntriesResponse{}
		want := into
		if c.m != nil {
			into, want = fresh(c.m), c.m
		}
		refused, err := reading(strings.NewReader(c.want)).answer(into)
		if err != nil || !reflect.DeepEqual(into, want) || fmt.Sprint(refused) != fmt.Sprint(c.err) {
			t.Errorf("%q is read as %+v, %v, %v", c.want, into, refused, err)
		}
	}
}

// drawn fills a message with anything.
func drawn(t *rapid.T, like any) any {
	v := fresh(like)
	fill(t, reflect.ValueOf(v).Elem(), "m")
	return v
}

var drawnBytes = rapid.OneOf(
	rapid.Just([]byte(nil)), rapid.Just([]byte{}), rapid.SliceOfN(rapid.Byte(), 0, 40),
	rapid.Map(rapid.SampledFrom([]int{31, 32, 255, 256, 65535, 65536, uncopied - 1, uncopied, believed - 1, believed, 3*believed + 7}), func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7)
		}
		return b
	}),
)

func fill(t *rapid.T, v reflect.Value, name string) {
	switch v.Interface().(type) {
	case time.Time:
		zone := rapid.SampledFrom([]*time.Location{time.UTC, time.FixedZone("", 3600), time.FixedZone("", -5*3600-60)}).Draw(t, "zone")
		at := time.Unix(rapid.Int64Range(-1<<33, 1<<34-1).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).In(zone)
		if rapid.Bool().Draw(t, "zero") {
			at = time.Time{}
		}
		v.Set(reflect.ValueOf(at))
		return
	case []byte:
		v.SetBytes(drawnBytes.Draw(t, name))
		return
	case []*hraft.Log:
		n := rapid.SampledFrom([]int{-1, 0, 1, 2, 15, 16, 64}).Draw(t, "entries")
		if n < 0 {
			return
		}
		logs := make([]*hraft.Log, n)
		for i := range logs {
			logs[i] = &hraft.Log{Data: []byte{1}}
			if i < 3 {
				fill(t, reflect.ValueOf(logs[i]).Elem(), "entry")
			}
		}
		v.Set(reflect.ValueOf(logs))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), v.Type().Field(i).Name)
		}
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Byte().Draw(t, name)))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, name) >> rapid.IntRange(0, 63).Draw(t, "shift"))
	case reflect.Int, reflect.Int64:
		i := rapid.Int64().Draw(t, name) >> rapid.IntRange(0, 63).Draw(t, "shift")
		if name == "Size" {
			i = max(i, 0)
		}
		v.SetInt(i)
	default:
		t.Fatalf("a field %s of kind %v", name, v.Kind())
	}
}

// sameMessage compares them; a time is the same instant in the same offset.
func sameMessage(a, b any) bool {
	x, ok := a.(*hraft.AppendEntriesRequest)
	y, _ := b.(*hraft.AppendEntriesRequest)
	if !ok || y == nil || len(x.Entries) != len(y.Entries) {
		return reflect.DeepEqual(a, b)
	}
	for i, l := range x.Entries {
		m := y.Entries[i]
		_, o := l.AppendedAt.Zone()
		_, p := m.AppendedAt.Zone()
		if !l.AppendedAt.Equal(m.AppendedAt) || o != p {
			return false
		}
		c, d := *l, *m
		c.AppendedAt = d.AppendedAt
		if !reflect.DeepEqual(c, d) {
			return false
		}
	}
	c, d := *x, *y
	c.Entries, d.Entries = nil, nil
	return (x.Entries == nil) == (y.Entries == nil) && reflect.DeepEqual(c, d)
}

// TestMessagesAreTheLibrarys: what is written here is what go-msgpack writes, to
// the byte, and what it writes is read, whatever the message.
func TestMessagesAreTheLibrarys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")
		request, answer := drawn(t, kinds[n].request), drawn(t, kinds[n].answer)
		old := cat(n, pack(t, false, request))
		if got := writtenRequest(t, request); !bytes.Equal(got, old) {
			t.Fatalf("%+v is written as\n%x, not\n%x", request, got, old)
		}
		text := rapid.StringN(0, 300, -1).Draw(t, "error")
		oldAnswer := cat(pack(t, false, text), pack(t, false, answer))
		got := written(t, func(e *encoder) { e.answer(answer, errors.New(text)) })
		if !bytes.Equal(got, oldAnswer) {
			t.Fatalf("%q, %+v is written as\n%x, not\n%x", text, answer, got, oldAnswer)
		}
		var r io.Reader = io.MultiReader(bytes.NewReader(old), bytes.NewReader(old))
		if len(old) < 1000 {
			r = iotest.OneByteReader(r)
		}
		d := reading(r)
		for range 2 {
			if m, err := d.request(maxRequest); err != nil || !sameMessage(m, request) {
				t.Fatalf("%+v is read as %+v, %v", request, m, err)
			}
		}
		if _, err := d.request(maxRequest); err != io.EOF {
			t.Fatalf("at the end: %v", err)
		}
		into := fresh(answer)
		refused, err := reading(bytes.NewReader(oldAnswer)).answer(into)
		if err != nil && len(oldAnswer) <= maxAnswer || err == nil && (!sameMessage(into, answer) || fmt.Sprint(refused) != text && (refused != nil || text != "")) {
			t.Fatalf("%q, %+v is read as %v, %+v, %v", text, answer, refused, into, err)
		}
	})
}

// TestNewerTimes: programs with go-msgpack's newer form of time are understood.
func TestNewerTimes(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(5, 0).UTC(), time.Unix(1<<33, 7).UTC(), time.Unix(-9, 1).UTC(), time.Unix(1<<35, 1).UTC()} {
		m := &hraft.AppendEntriesRequest{Entries: []*hraft.Log{{AppendedAt: at}}}
		got, err := reading(bytes.NewReader(cat(0, pack(t, true, m)))).request(maxRequest)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%v: %+v, %v", at, got, err)
		}
	}
}

// hostile are messages that a node might send which is let in and means ill.
var hostile = map[string][]byte{
	"type":                      cat(5, "\x80"),
	"nil":                       cat(0, "\xc0"),
	"map of 2^32":               cat(0, "\xdf\xff\xff\xff\xff"),
	"map of 65":                 cat(0, "\xde\x00\x41"),
	"array at the top":          cat(0, "\xdd\xff\xff\xff\xff"),
	"bytes of 2^32":             cat(0, "\x81\xa6Leader\xc6\xff\xff\xff\xff"),
	"string of 2^32":            cat(0, "\x81\xa6Leader\xdb\xff\xff\xff\xff"),
	"unknown bytes of 2^32":     cat(0, "\x81\xa1x\xdb\xff\xff\xff\xff"),
	"extension of 2^32":         cat(0, "\x81\xa1x\xc9\xff\xff\xff\xff"),
	"extension as bytes":        cat(0, "\x81\xa6Leader\xc7\x01\x01\x01"),
	"array of 2^32 entries":     cat(0, "\x81\xa7Entries\xdd\xff\xff\xff\xff", strings.Repeat("\x80", 1<<20)),
	"array of 1025 entries":     cat(0, "\x81\xa7Entries\xdc\x04\x01"),
	"entries in a vote":         cat(1, "\x81\xa7Entries\x91\x80"),
	"entries twice":             cat(0, "\x82\xa7Entries\x91\x80\xa7Entries\x91\x80"),
	"nil entry":                 cat(0, "\x81\xa7Entries\x91\xc0"),
	"array in an entry":         cat(0, "\x81\xa7Entries\x91\x81\xa4Data\x91\x01"),
	"map in an entry":           cat(0, "\x81\xa7Entries\x91\x81\xa4Data\x81\x01"),
	"entries in an entry":       cat(0, "\x81\xa7Entries\x91\x81\xa7Entries\x91\x80"),
	"entry of type 256":         cat(0, "\x81\xa7Entries\x91\x81\xa4Type\xcd\x01\x00"),
	"long time":                 cat(0, "\x81\xa7Entries\x91\x81\xaaAppendedAt\xdb\x01\x00\x00\x00"),
	"time of another type":      cat(0, "\x81\xa7Entries\x91\x81\xaaAppendedAt\xd6\x05\x00\x00\x00\x00"),
	"deep arrays":               cat(0, "\x81\xa1x", strings.Repeat("\x91", 1<<20)),
	"deep maps":                 cat(0, strings.Repeat("\x81\xa1x", 1<<20)),
	"key that is a map":         cat(0, "\x81\x80"),
	"key of 2^32":               cat(0, "\x81\xdb\xff\xff\xff\xff"),
	"key of 65":                 cat(0, "\x81\xda\x00\x41", make([]byte, 65)),
	"key that is a number":      cat(0, "\x81\x01\x01"),
	"key that is bytes":         cat(0, "\x81\xc4\x01x\x01"),
	"unused byte":               cat(0, "\x81\xa1x\xc1"),
	"negative term":             cat(0, "\x81\xa4Term\xff"),
	"snapshot of negative size": cat(2, "\x81\xa4Size\xff"),
	"snapshot, negative, long":  cat(2, "\x81\xa4Size\xd3\xff\xff\xff\xff\xff\xff\xff\xff"),
	"snapshot, size unsigned":   cat(2, "\x81\xa4Size\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
	"snapshot, size a text":     cat(2, "\x81\xa4Size\xa11"),
	"after a snapshot":          cat(2, "\x81\xa4Size\x03abc", 0, "\xdf\xff\xff\xff\xff"),
	"after a good one":          cat(3, "\x80", 0, "\xdf\xff\xff\xff\xff"),
	"entries of 3 MiB each": cat(0, "\x81\xa7Entries\x92\x81\xa4Data\xc6\x00\x30\x00\x00", make([]byte, 3<<20),
		"\x81\xa4Data\xc6\x00\x30\x00\x00"),
}

// TestHostileRequests looks at what they make a node allocate, too.
func TestHostileRequests(t *testing.T) {
	for what, msg := range hostile {
		t.Run(what, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			d := reading(bytes.NewReader(msg))
			var err error
			for err == nil {
				var m any
				if m, err = d.request(4 << 20); err == nil {
					if s, ok := m.(*hraft.InstallSnapshotRequest); ok {
						_, err = io.CopyN(io.Discard, d.r, s.Size)
					}
				}
			}
			if !errors.Is(err, errMalformed) {
				t.Errorf("%v", err)
			}
			runtime.ReadMemStats(&after)
			most := uint64(256 << 10)
			if len(msg) > 2<<20 {
				most = 8 << 20 // what really comes it may hold
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > most {
				t.Errorf("%d KiB allocated", got>>10)
			}
		})
	}
}

// TestAnnouncedIsNotBelieved: who says that much follows, and ends, has not made
// anybody make room for it.
func TestAnnouncedIsNotBelieved(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, err := reading(bytes.NewReader(cat(0, "\x81\xa7Entries\x91\x81\xa4Data\xc6\x03\x00\x00\x00abc"))).request(maxRequest)
	runtime.ReadMemStats(&after)
	if err != io.ErrUnexpectedEOF {
		t.Errorf("%v", err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 2*believed {
		t.Errorf("%d KiB allocated", got>>10)
	}
}

// TestHostileAnswers does the same to who asks.
func TestHostileAnswers(t *testing.T) {
	for what, msg := range map[string][]byte{
		"no text":          cat("\x80"),
		"text that is nil": cat("\xc0"),
		"text of 2^32":     cat("\xdb\xff\xff\xff\xff"),
		"text of 64 KiB":   cat("\xdb\x00\x01\x00\x01"),
		"map of 2^32":      cat("\xa0\xdf\xff\xff\xff\xff"),
		"bytes of 2^32":    cat("\xa0\x81\xa1x\xc6\xff\xff\xff\xff"),
		"array":            cat("\xa0\x81\xa1x\x91\x01"),
		"deep":             cat("\xa0\x81\xa1x", strings.Repeat("\x91", 1<<20)),
		"more than 1 MiB":  cat("\xa0\x82\xa1x\xc6\x00\x0f\x00\x00", make([]byte, 0xf0000), "\xa1y\xc6\x00\x0f\x00\x00"),
		"the second value": cat("\xa0\x01"),
	} {
		for _, k := range kinds {
			if _, err := reading(bytes.NewReader(msg)).answer(fresh(k.answer)); !errors.Is(err, errMalformed) {
				t.Errorf("%s as %T: %v", what, k.answer, err)
			}
		}
	}
}

// TestTolerance: what other programs may come to write.
func TestTolerance(t *testing.T) {
	unknown := "\xa1a\xc0\xa1b\x01\xa1c\xff\xa1d\xc2\xa1e\xca1234\xa1f\xcb12345678\xa1g\xcc1\xa1h\xcd12\xa1i\xd312345678\xa1j\xd41x\xa1k\xd8x1234567890123456" +
		"\xa1l\xc7\x021ab\xa1m\xc8\x00\x01xa\xa1n\xc9\x00\x00\x00\x01xa\xa1o\xa3abc\xa1p\xd9\x03abc\xa1q\xc5\x00\x03abc\xa1r\xdb\x00\x00\x00\x03abc"
	msg := cat(0, "\xde\x00\x16", "\xa4Term\xd1\x01\x00", unknown, "\xa7Entries\xdd\x00\x00\x00\x01\xdf\x00\x00\x00\x03\xa4Type\xd0\x00\xa3new\xc3\xa4Data\xc4\x02ab\xd9\x04Addr\xd9\x01x\xda\x00\x02ID\xc0")
	got, err := reading(iotest.OneByteReader(bytes.NewReader(msg))).request(maxRequest)
	want := &hraft.AppendEntriesRequest{Term: 256, RPCHeader: hraft.RPCHeader{Addr: []byte("x")}, Entries: []*hraft.Log{{Data: []byte("ab")}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestMaxRequest: what an honest leader may send passes, and not much more is
// believed.
func TestMaxRequest(t *testing.T) {
	entries := func(n int, size uint32) []byte {
		msg := cat(0, "\x81\xa7Entries", 0x90+n)
		for range n {
			msg = append(msg, cat("\x81\xa4Data\xc6", binary.BigEndian.AppendUint32(nil, size), make([]byte, size))...)
		}
		return msg
	}
	for _, c := range []struct {
		what string
		msg  []byte
		good bool
	}{
		{"a lone entry of the largest command", entries(1, 48<<20), true},
		{"16 MiB in many", entries(8, 2<<20), true},
		{"a lone entry of 64 MiB", entries(1, 64<<20), false},
		{"many that are too much together", entries(5, 16<<20), false},
	} {
		if _, err := reading(bytes.NewReader(c.msg)).request(maxRequest); (err == nil) != c.good {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestDataHasRoomOfItsOwn: the cache of the newest entries keeps what was read.
func TestDataHasRoomOfItsOwn(t *testing.T) {
	m := &hraft.AppendEntriesRequest{RPCHeader: hraft.RPCHeader{Addr: []byte("a"), ID: []byte("b")}}
	for i := range 10 {
		m.Entries = append(m.Entries, &hraft.Log{Data: bytes.Repeat([]byte{byte(i)}, 1000)})
	}
	one := writtenRequest(t, m)
	d := reading(bytes.NewReader(cat(one, one)))
	first, err := d.request(maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.request(maxRequest); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(first, m) {
		t.Error("the first has changed with the second")
	}
	for _, l := range first.(*hraft.AppendEntriesRequest).Entries {
		if cap(l.Data) > 1024 {
			t.Errorf("1000 bytes hold %d", cap(l.Data))
		}
	}
}

// FuzzRequest: nothing makes it panic, it does not matter how bytes come in
// pieces, and what go-msgpack understands, too, is the same to it, to the byte.
func FuzzRequest(f *testing.F) {
	h := hraft.RPCHeader{ProtocolVersion: 3, ID: []byte("id"), Addr: []byte("addr")}
	logs := []*hraft.Log{{Index: 1, Data: make([]byte, 7000), AppendedAt: time.Unix(1, 2).UTC()}, {Index: 1 << 40, Extensions: make([]byte, 300)}}
	for _, m := range []any{
		&hraft.AppendEntriesRequest{RPCHeader: h, Term: 300, Entries: logs}, &hraft.AppendEntriesRequest{RPCHeader: h},
		&hraft.RequestVoteRequest{RPCHeader: h, LeadershipTransfer: true}, &hraft.InstallSnapshotRequest{RPCHeader: h, Size: 5},
		&hraft.TimeoutNowRequest{RPCHeader: h}, &hraft.RequestPreVoteRequest{RPCHeader: h, Term: 1 << 63},
	} {
		f.Add(writtenRequest(f, m))
	}
	for _, m := range hostile {
		if len(m) < 1<<10 {
			f.Add(m)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		r := bytes.NewReader(b)
		whole := reading(r)
		got, err := whole.request(limit)
		pieces, perr := reading(iotest.OneByteReader(bytes.NewReader(b))).request(limit)
		if fmt.Sprint(err) != fmt.Sprint(perr) || err == nil && !sameMessage(got, pieces) {
			t.Fatalf("in pieces %+v, %v, at once %+v, %v", pieces, perr, got, err)
		}
		if err != nil {
			return
		}
		end := len(b) - r.Len() - whole.r.Buffered()
		old := fresh(got)
		rest := bytes.NewReader(b[1:])
		if err := codec.NewDecoder(rest, &codec.MsgpackHandle{}).Decode(old); err != nil {
			return // it refuses a little more
		}
		if len(b)-rest.Len() != end || !sameMessage(got, old) {
			t.Fatalf("%x is %+v and ends at %d, and to go-msgpack %+v and at %d", b, got, end, old, len(b)-rest.Len())
		}
	})
}

// BenchmarkAppendEntries is one small entry, written and read.
func BenchmarkAppendEntries(b *testing.B) {
	m := &hraft.AppendEntriesRequest{
		RPCHeader: hraft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1/01JQ0000000000000000000000"), Addr: []byte("n1/01JQ0000000000000000000000 127.0.0.1:7071")},
		Term:      5, PrevLogEntry: 100_000, PrevLogTerm: 5, LeaderCommitIndex: 99_999,
		Entries: []*hraft.Log{{Index: 100_001, Term: 5, Data: make([]byte, 1200), AppendedAt: time.Now()}},
	}
	var wire bytes.Buffer
	b.Run("by=hand", func(b *testing.B) {
		d := reading(&wire)
		b.ReportAllocs()
		for b.Loop() {
			if err := send(&wire, func(e *encoder) { e.request(m) }); err != nil {
				b.Fatal(err)
			}
			if _, err := d.request(maxRequest); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("by=go-msgpack", func(b *testing.B) {
		w := bufio.NewWriter(&wire)
		h := &codec.MsgpackHandle{}
		h.TimeNotBuiltin = true
		e := codec.NewEncoder(w, h)
		d := codec.NewDecoder(bufio.NewReader(&wire), &codec.MsgpackHandle{})
		b.ReportAllocs()
		for b.Loop() {
			if err := e.Encode(m); err != nil {
				b.Fatal(err)
			}
			w.Flush()
			if err := d.Decode(&hraft.AppendEntriesRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
