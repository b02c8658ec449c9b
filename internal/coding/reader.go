package coding

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// Reader takes msgpack or JSON apart, one value after the other. After an error
// all reads as zero; End tells the first one. nil and null read as zero too.
type Reader struct {
	src     []byte
	pos     int
	err     error
	lenient bool
	text    bool   // src is JSON
	made    []byte // from values; what lies in it is never changed
}

// NewReader returns a reader of msgpack, which must not change as long as what
// was read from it is used. A lenient one, for what a server answers, skips
// unknown fields and takes JSONText unseen; any other is for what a stranger asks.
func NewReader(src []byte, lenient bool) *Reader { return &Reader{src: src, lenient: lenient} }

// NewTextReader returns a reader of JSON, which must not change as long as what
// was read from it is used. It is strict: unknown fields, a name twice, bad UTF-8,
// and values nested deeper than MaxDepth are errors. So are some things that are
// good JSON but that hardly anybody writes, such as a whole number of more than
// 18 digits: after an error another reader must have the last word.
func NewTextReader(src []byte) *Reader { return &Reader{src: src, text: true} }

// Lend lets the reader put what it makes into memory, which must not be used by
// others as long as what was read is; Back returns it, or larger memory that it
// had to take instead.
func (r *Reader) Lend(memory []byte) { r.made = memory[:0] }

// Back returns the memory of Lend.
func (r *Reader) Back() []byte { return r.made[:0] }

// room returns n bytes at the end of what was made.
func (r *Reader) room(n int) []byte {
	if r.made == nil || cap(r.made)-len(r.made) < n {
		r.made = make([]byte, 0, max(n, len(r.src)-r.pos, 512)) // most likely for all that is still to come
	}
	at := len(r.made)
	r.made = r.made[:at+n]
	return r.made[at : at+n : at+n]
}

// End returns the first error; something left behind the value is one.
func (r *Reader) End() error {
	if r.text {
		r.space()
	}
	if r.err == nil && r.pos != len(r.src) {
		r.Fail("something after the end")
	}
	return r.err
}

// Fail makes what was read no good, and tells the byte.
func (r *Reader) Fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d: %s", r.pos, what)
	}
}

// take returns the next n bytes, nil where there are fewer.
func (r *Reader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.src)-r.pos) {
		r.Fail("unexpected end")
		return nil
	}
	b := r.src[r.pos : r.pos+int(n) : r.pos+int(n)]
	r.pos += int(n)
	return b
}

// code returns the next value's first byte.
func (r *Reader) code() (byte, bool) {
	if r.err != nil {
		return 0, false
	}
	if r.pos >= len(r.src) {
		r.Fail("unexpected end")
		return 0, false
	}
	r.pos++
	return r.src[r.pos-1], true
}

// number reads a big-endian number of n bytes.
func (r *Reader) number(n uint64) (v uint64) {
	for _, c := range r.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (r *Reader) signed(n uint64) int64 {
	return int64(r.number(n)<<(64-8*n)) >> (64 - 8*n) // with its sign
}

// Nil takes a nil, if that is what comes next.
func (r *Reader) Nil() bool {
	if r.text {
		return r.space() == 'n' && r.word("null")
	}
	if r.err != nil || r.pos >= len(r.src) || r.src[r.pos] != 0xc0 {
		return false
	}
	r.pos++
	return true
}

// Raw reads a text without copying it.
func (r *Reader) Raw() []byte {
	if r.text {
		return r.quoted()
	}
	c, ok := r.code()
	var b []byte
	switch {
	case !ok, c == 0xc0:
		return nil
	case c>>5 == 5:
		b = r.take(uint64(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		b = r.take(r.number(1 << (c - 0xd9)))
	default:
		r.pos--
		r.Fail("not a string")
		return nil
	}
	if !utf8.Valid(b) {
		r.Fail("a string that is not UTF-8")
		return nil
	}
	return b
}

// Str reads a text.
func (r *Reader) Str() string { return string(r.Raw()) }

// name reads the name of a map's entry.
func (r *Reader) name() []byte {
	if r.pos < len(r.src) {
		if c := r.src[r.pos]; c>>5 != 5 && (c < 0xd9 || c > 0xdb) {
			r.Fail("a map's key that is not a string")
			return nil
		}
	}
	return r.Raw()
}

// Bin reads bytes without copying them; ok is false where something else comes
// next, which is still to be read.
func (r *Reader) Bin() (b []byte, ok bool) {
	if r.text || r.err != nil || r.pos >= len(r.src) {
		return nil, false
	}
	c := r.src[r.pos]
	if c < 0xc4 || c > 0xc6 {
		return nil, false
	}
	r.pos++
	b = r.take(r.number(1 << (c - 0xc4)))
	return b, r.err == nil
}

// Int reads a whole number.
func (r *Reader) Int() int64 {
	if r.text {
		return r.digits()
	}
	c, ok := r.code()
	switch {
	case !ok, c == 0xc0:
		return 0
	case c <= 0x7f, c >= 0xe0:
		return int64(int8(c))
	case c >= 0xcc && c <= 0xcf:
		v := r.number(1 << (c - 0xcc))
		if v > math.MaxInt64 {
			r.Fail("a number that is too large")
			return 0
		}
		return int64(v)
	case c >= 0xd0 && c <= 0xd3:
		return r.signed(1 << (c - 0xd0))
	}
	r.pos--
	r.Fail("not a whole number")
	return 0
}

// OptInt reads a whole number or nil.
func (r *Reader) OptInt() *int64 {
	if r.Nil() {
		return nil
	}
	v := r.Int()
	return &v
}

// Bool reads true or false.
func (r *Reader) Bool() bool {
	if r.text {
		return r.truth()
	}
	c, ok := r.code()
	if ok && (c < 0xc0 || c == 0xc1 || c > 0xc3) {
		r.pos--
		r.Fail("not a boolean")
	}
	return c == 0xc3
}

// OptBool reads true, false or nil.
func (r *Reader) OptBool() *bool {
	if r.Nil() {
		return nil
	}
	v := r.Bool()
	return &v
}

// Items goes through a list.
type Items struct {
	left  int  // msgpack: how many are to come
	begun bool // JSON: one was there
}

// List reads the head of a list. ok is false for nil.
func (r *Reader) List() (it Items, ok bool) {
	if r.text {
		return it, r.open('[')
	}
	it.left, ok = r.array()
	return it, ok
}

// Len is how many values are still to come, 0 where that is not known before.
func (it *Items) Len() int { return it.left }

// Next reports whether there is a value to be read.
func (r *Reader) Next(it *Items) bool {
	if r.text {
		return r.next(&it.begun, ']')
	}
	it.left--
	return it.left >= 0 && r.err == nil
}

// array reads how many values follow. Each takes at least a byte, so there are
// no more than that.
func (r *Reader) array() (n int, ok bool) {
	c, ok := r.code()
	var v uint64
	switch {
	case !ok, c == 0xc0:
		return 0, false
	case c>>4 == 9:
		v = uint64(c & 0x0f)
	case c == 0xdc || c == 0xdd:
		v = r.number(2 << (c - 0xdc))
	default:
		r.pos--
		r.Fail("not a list")
		return 0, false
	}
	return r.fits(v, 1)
}

func (r *Reader) fits(v, size uint64) (int, bool) {
	if r.err == nil && v > uint64(len(r.src)-r.pos)/size {
		r.Fail("unexpected end")
	}
	if r.err != nil {
		return 0, false
	}
	return int(v), true
}

// Map reads a map and calls field with each name; it reads the value, or
// returns false where it does not know the name. ok is false for nil. A name
// twice is an error, unless the reader is lenient.
func (r *Reader) Map(field func(name []byte) bool) (ok bool) {
	if r.text {
		return r.object(field)
	}
	c, ok := r.code()
	var v uint64
	switch {
	case !ok, c == 0xc0:
		return false
	case c>>4 == 8:
		v = uint64(c & 0x0f)
	case c == 0xde || c == 0xdf:
		v = r.number(2 << (c - 0xde))
	default:
		r.pos--
		r.Fail("not an object")
		return false
	}
	n, ok := r.fits(v, 2)
	var seen names
	for i := 0; i < n && r.err == nil; i++ {
		name := r.name()
		if r.err != nil {
			break
		}
		if !r.lenient && !seen.add(name) {
			r.Fail("a name twice")
			break
		}
		if !field(name) {
			if !r.lenient {
				r.Fail("an unknown field")
				break
			}
			r.skip()
		}
	}
	return ok && r.err == nil
}

// Strs reads a list of at most so many texts; nil is nil. They share their memory.
func (r *Reader) Strs(most int) []string {
	begin, ok := r.List()
	if !ok {
		return nil
	}
	// Once to find where they end, so that one copy serves all.
	from, made, n := r.pos, len(r.made), 0
	for it := begin; r.Next(&it); n++ {
		if r.Nil() {
			r.Fail("not a string")
		}
		r.Raw()
	}
	if n > most {
		r.Fail("a list that is too long")
	}
	if len(r.made) != made {
		r.Fail("an escaped string") // which is not in src
	}
	if r.err != nil {
		return nil
	}
	all := string(r.src[from:r.pos])
	r.pos = from
	quote := 0
	if r.text {
		quote = 1
	}
	out := make([]string, 0, n)
	for it := begin; r.Next(&it); {
		b := r.Raw()
		at := r.pos - quote - len(b) - from
		out = append(out, all[at:at+len(b)])
	}
	return out
}

// Base64 reads the bytes of a base64 text, padded or not. nil is nil.
func (r *Reader) Base64() []byte {
	if r.Nil() {
		return nil
	}
	b := r.Raw()
	if r.err != nil {
		return nil
	}
	enc := base64.StdEncoding
	if len(b)%4 != 0 {
		enc = base64.RawStdEncoding
	}
	// Room for the longest of it, of which some may be left.
	out := r.room(base64.RawStdEncoding.DecodedLen(len(b)))
	n, err := enc.Decode(out, b)
	if err != nil {
		r.Fail("not base64")
		return nil
	}
	r.made = r.made[:len(r.made)-len(out)+n]
	return out[:n:n]
}

// Value reads any value as JSON; depth is how deep it lies, counted from 1. JSON
// text is not copied.
func (r *Reader) Value(depth int) []byte {
	if r.text {
		r.space()
		from := r.pos
		if r.value(depth); r.err != nil {
			return nil
		}
		return r.src[from:r.pos:r.pos]
	}
	if r.err != nil || r.pos >= len(r.src) {
		r.Fail("unexpected end")
		return nil
	}
	if n, ok := r.extHead(); ok {
		b := r.jsonText(n)
		if !r.lenient {
			r.checkJSON(b, depth)
		}
		return b
	}
	if r.err != nil {
		return nil
	}
	from := len(r.made)
	t := transcoder{r: *r, out: r.made, limit: from + 2*len(r.src) + 64, strict: !r.lenient}
	t.value(depth)
	r.pos, r.err = t.r.pos, t.r.err
	if r.err != nil {
		return nil
	}
	r.made = t.out
	return r.made[from:len(r.made):len(r.made)]
}

// extHead reads the head of an extension, up to its type, if one comes next.
func (r *Reader) extHead() (n uint64, ok bool) {
	switch c := r.src[r.pos]; {
	case c >= 0xc7 && c <= 0xc9:
		r.pos++
		n = r.number(1 << (c - 0xc7))
	case c >= 0xd4 && c <= 0xd8:
		r.pos++
		n = 1 << (c - 0xd4)
	default:
		return 0, false
	}
	return n, r.err == nil
}

// jsonText reads an extension's type and its n bytes of JSON, without the white
// space around it.
func (r *Reader) jsonText(n uint64) []byte {
	if c, ok := r.code(); ok && c != JSONText {
		r.pos--
		r.Fail("an extension type, which has no JSON")
		return nil
	}
	return bytes.Trim(r.take(n), " \t\r\n")
}

// checkJSON refuses what is not exactly one JSON value with each name once, or
// nested too deep for where it lies.
func (r *Reader) checkJSON(b []byte, depth int) {
	if r.err != nil {
		return
	}
	t := Reader{src: b, text: true}
	t.value(depth)
	if t.End() != nil {
		r.Fail("JSON text that is no JSON, or nested deeper than " + strconv.Itoa(MaxDepth))
	}
}

// skip passes one value over.
func (r *Reader) skip() {
	if r.err != nil || r.pos >= len(r.src) {
		r.Fail("unexpected end")
		return
	}
	if n, ok := r.extHead(); ok {
		r.take(n + 1)
		return
	}
	t := transcoder{r: *r, limit: math.MaxInt}
	t.value(1)
	r.pos, r.err = t.r.pos, t.r.err
}

// TooDeep reports whether JSON is nested deeper than most. It looks at brackets
// only, so that it is flat in memory and ends at the first one too many; whether
// the JSON is any good is for others to find out.
func TooDeep(b []byte, most int) bool {
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > most {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// names finds a name that comes twice.
type names struct {
	few  [16][]byte
	n    int
	many map[string]struct{} // all of them, once there are more
}

// add reports whether the name is new.
func (s *names) add(name []byte) bool {
	if s.many == nil {
		for _, b := range s.few[:s.n] {
			if string(b) == string(name) {
				return false
			}
		}
		if s.n < len(s.few) {
			s.few[s.n] = name
			s.n++
			return true
		}
		s.many = make(map[string]struct{}, 2*s.n)
		for _, b := range s.few {
			s.many[string(b)] = struct{}{}
		}
	}
	if _, ok := s.many[string(name)]; ok {
		return false
	}
	s.many[string(name)] = struct{}{}
	return true
}
