package event

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew (the bytes are frozen: only for what is added)")

// codec is a format: how a value is written, and how it is read.
type codec[T any] struct {
	// file is testdata/<file>.golden: in each line a name, the bytes in hex and the value as JSON.
	// A line with "-" in place of bytes is one to add.
	file   string
	encode func(*T) []byte
	decode func([]byte) (*T, error)
}

var (
	commandCodec = codec[Command]{"commands", EncodeCommand,
		func(b []byte) (*Command, error) { c := &Command{}; return c, c.Decode(b) }}
	resultCodec  = codec[Result]{"results", EncodeResult, DecodeResult}
	entryCodec   = codec[Entry]{"entries", (*Entry).Encode, DecodeEntry}
	policyCodec  = codec[Policy]{"policies", EncodePolicy, DecodePolicy}
	contentCodec = codec[Content]{"contents",
		func(c *Content) []byte { return EncodeContent(c).Bytes }, DecodeContent}
	headerCodec = codec[Event]{"headers", func(e *Event) []byte {
		return AppendHeader(nil, e)
	}, func(b []byte) (*Event, error) {
		e := &Event{}
		err := DecodeHeader(b, e)
		typ, queue, worker, ok := HeaderKind(b)
		if err == nil && ok && (typ != e.Type || string(queue) != e.Queue ||
			typ == Leased && string(worker) != e.Worker) {
			err = fmt.Errorf("kind %v, %q, %q", typ, queue, worker)
		}
		return e, err
	}}
	answersCodec = codec[[]Answer]{"answers",
		func(a *[]Answer) []byte { return EncodeAnswers(*a) },
		func(b []byte) (*[]Answer, error) {
			want := 0 // as many as are claimed, within reason
			if len(b) > 1 && b[1]&0xf0 == 0x90 {
				want = int(b[1] & 0x0f)
			}
			a, err := DecodeAnswers(b, want)
			return &a, err
		}}
)

// golden fails unless the values of the file have the bytes in it, and these are read as the values.
// It calls each with every value.
func (c codec[T]) golden(t *testing.T, each func(name string, v *T, b []byte)) {
	t.Helper()
	var out bytes.Buffer
	for _, g := range readGolden(t, c.file) {
		v := new(T)
		must(t, json.Unmarshal(g.value, v), "%s", g.name)
		b := c.encode(v)
		fmt.Fprintf(&out, "%s %x %s\n", g.name, b, g.value)
		if !*update && !bytes.Equal(b, g.bytes) {
			t.Errorf("%s: %s is\n%x\nfrozen is\n%x", c.file, g.name, b, g.bytes)
		}
		got, err := c.decode(b)
		must(t, err, "%s", g.name)
		same(t, g.name, got, v)
		each(g.name, v, b)
	}
	if *update {
		must(t, os.WriteFile(goldenFile(c.file), out.Bytes(), 0o644))
	}
}

// golden is a line of a golden file.
type golden struct {
	name         string
	bytes, value []byte
}

func goldenFile(of string) string { return filepath.Join("testdata", of+".golden") }

func readGolden(t testing.TB, file string) (out []golden) {
	t.Helper()
	text, err := os.ReadFile(goldenFile(file))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		b, err := hex.DecodeString(strings.Trim(words[1], "-"))
		must(t, err)
		out = append(out, golden{words[0], b, []byte(words[2])})
	}
	return out
}

// TestGolden: the bytes of what is written are frozen. They can be read, as what they were.
func TestGolden(t *testing.T) {
	commandCodec.golden(t, func(string, *Command, []byte) {})
	resultCodec.golden(t, func(string, *Result, []byte) {})
	entryCodec.golden(t, func(string, *Entry, []byte) {})
	policyCodec.golden(t, func(string, *Policy, []byte) {})
	contentCodec.golden(t, func(name string, c *Content, _ []byte) {
		const digest = "2639a04636895f5b8c00828eaa546eacaa892746d762d82cb378ca11d6e44e00"
		if got := EncodeContent(c).Digest; name == "all" && fmt.Sprintf("%x", got) != digest {
			t.Errorf("the digest is %x", got)
		}
	})
	answersCodec.golden(t, func(name string, a *[]Answer, b []byte) {
		_, err := DecodeAnswers(b, len(*a)+1)
		assert.True(t, err != nil, "%s: taken for one command more", name)
	})
	types := map[Type]bool{}
	headerCodec.golden(t, func(name string, e *Event, b []byte) {
		types[e.Type] = true
		_, _, _, ok := HeaderKind(b)
		assert.True(t, ok, "%s has no kind", name)
	})
	for typ := QueueCreated; typ < NumTypes; typ++ {
		assert.True(t, types[typ], "no golden bytes for %s", typ)
	}
}

// must fails the test on an error.
var must = require.NoError
