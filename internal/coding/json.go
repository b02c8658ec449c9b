package coding

import (
	"encoding/base64"
	"errors"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep values may be nested.
const MaxDepth = 64

// ErrTooLarge is for JSON that would become larger than allowed.
var ErrTooLarge = errors.New("too large as JSON")

// ToJSON appends the JSON of one msgpack value, which must be all of src, at
// most about limit bytes of it. bin becomes a base64 string, JSONText what it
// holds; other extensions, map keys that are not strings, NaN and infinities
// have no JSON. A name twice in a map is left to whoever reads the JSON.
// Errors are ErrTooLarge or tell the byte.
func ToJSON(dst, src []byte, limit int) ([]byte, error) {
	t := transcoder{r: Reader{src: src}, out: dst, limit: limit}
	if dst == nil {
		t.out = make([]byte, 0, len(src)+len(src)/4+16)
	}
	t.value(1)
	return t.out, t.r.End()
}

// transcoder writes what r reads as JSON.
type transcoder struct {
	r      Reader
	out    []byte
	limit  int
	strict bool // refuse a name twice, and JSONText that is nested too deep
}

func (t *transcoder) value(depth int) {
	r := &t.r
	c, ok := r.code()
	if !ok {
		return
	}
	if len(t.out) > t.limit {
		r.err = ErrTooLarge
		return
	}
	switch {
	case c <= 0x7f:
		t.out = strconv.AppendUint(t.out, uint64(c), 10)
	case c >= 0xe0:
		t.out = strconv.AppendInt(t.out, int64(int8(c)), 10)
	case c <= 0x8f:
		t.object(uint64(c&0x0f), depth)
	case c <= 0x9f:
		t.array(uint64(c&0x0f), depth)
	case c <= 0xbf:
		t.str(r.take(uint64(c & 0x1f)))
	case c == 0xc0:
		t.out = append(t.out, "null"...)
	case c == 0xc2:
		t.out = append(t.out, "false"...)
	case c == 0xc3:
		t.out = append(t.out, "true"...)
	case c >= 0xc4 && c <= 0xc6:
		t.bin(r.take(r.number(1 << (c - 0xc4))))
	case c >= 0xc7 && c <= 0xc9:
		t.ext(r.number(1<<(c-0xc7)), depth)
	case c == 0xca:
		t.float(float64(math.Float32frombits(uint32(r.number(4)))), 32)
	case c == 0xcb:
		t.float(math.Float64frombits(r.number(8)), 64)
	case c >= 0xcc && c <= 0xcf:
		t.out = strconv.AppendUint(t.out, r.number(1<<(c-0xcc)), 10)
	case c >= 0xd0 && c <= 0xd3:
		t.out = strconv.AppendInt(t.out, r.signed(1<<(c-0xd0)), 10)
	case c >= 0xd4 && c <= 0xd8:
		t.ext(1<<(c-0xd4), depth)
	case c >= 0xd9 && c <= 0xdb:
		t.str(r.take(r.number(1 << (c - 0xd9))))
	case c == 0xdc || c == 0xdd:
		t.array(r.number(2<<(c-0xdc)), depth)
	case c == 0xde || c == 0xdf:
		t.object(r.number(2<<(c-0xde)), depth)
	default:
		r.Fail("a code that msgpack does not have")
	}
}

func (t *transcoder) object(n uint64, depth int) {
	r := &t.r
	if depth > MaxDepth {
		r.Fail("nested deeper than " + strconv.Itoa(MaxDepth))
	}
	var seen names
	t.out = append(t.out, '{')
	for i := uint64(0); i < n && r.err == nil; i++ {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		name := r.name()
		if t.strict && !seen.add(name) {
			r.Fail("a name twice")
		}
		t.str(name)
		t.out = append(t.out, ':')
		t.value(depth + 1)
	}
	t.out = append(t.out, '}')
}

func (t *transcoder) array(n uint64, depth int) {
	if depth > MaxDepth {
		t.r.Fail("nested deeper than " + strconv.Itoa(MaxDepth))
	}
	t.out = append(t.out, '[')
	for i := uint64(0); i < n && t.r.err == nil; i++ {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		t.value(depth + 1)
	}
	t.out = append(t.out, ']')
}

func (t *transcoder) str(b []byte) {
	if t.r.err != nil {
		return
	}
	out, err := jsontext.AppendQuote(t.out, b)
	if err != nil {
		t.r.Fail("a string that is not UTF-8")
		return
	}
	t.out = out
}

func (t *transcoder) bin(b []byte) {
	if t.r.err != nil {
		return
	}
	t.out = append(t.out, '"')
	t.out = base64.StdEncoding.AppendEncode(t.out, b)
	t.out = append(t.out, '"')
}

// ext takes JSON text over. It must be one whole value: otherwise what follows
// it could be read as belonging to what is around it. Names in it are left to
// the reader of the JSON, as is how deep it goes.
func (t *transcoder) ext(n uint64, depth int) {
	b := t.r.jsonText(n)
	if t.r.err != nil {
		return
	}
	if t.strict {
		if t.r.checkJSON(b, depth); t.r.err != nil {
			return
		}
	} else if !jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true)) {
		t.r.Fail("JSON text that is not JSON")
		return
	}
	t.out = append(t.out, b...)
}

func (t *transcoder) float(v float64, bits int) {
	if t.r.err != nil {
		return
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		t.r.Fail("a number that JSON does not have")
		return
	}
	t.out = jsontext.AppendFloat(t.out, v, bits)
}
