package coding

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// space passes white space and returns what comes next, 0 where nothing does.
func (r *Reader) space() byte {
	if r.err != nil {
		return 0
	}
	for ; r.pos < len(r.src); r.pos++ {
		switch c := r.src[r.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// word passes a literal.
func (r *Reader) word(w string) bool {
	if r.err == nil && len(r.src)-r.pos >= len(w) && string(r.src[r.pos:r.pos+len(w)]) == w {
		r.pos += len(w)
		return true
	}
	r.Fail("no JSON")
	return false
}

// open passes the beginning of an object or a list; false where there is null.
func (r *Reader) open(bracket byte) bool {
	switch r.space() {
	case bracket:
		r.pos++
		return true
	case 'n':
		r.word("null")
		return false
	}
	r.Fail("not an object or list")
	return false
}

// next reports whether there is another member or value, and passes what is
// before it: nothing or a comma; otherwise it passes the closing bracket.
func (r *Reader) next(begun *bool, bracket byte) bool {
	c := r.space()
	if c == bracket {
		r.pos++
		return false
	}
	if *begun {
		if c != ',' {
			r.Fail("no JSON")
			return false
		}
		r.pos++
		c = r.space()
	}
	*begun = true
	if c == 0 || c == bracket {
		r.Fail("no JSON")
	}
	return r.err == nil
}

// member reads a member's name and the colon behind it.
func (r *Reader) member(seen *names) []byte {
	name := r.quoted()
	if name == nil || !seen.add(name) {
		r.Fail("no name, or one twice")
		return nil
	}
	if r.space() != ':' {
		r.Fail("no JSON")
		return nil
	}
	r.pos++
	r.space()
	return name
}

func (r *Reader) object(field func(name []byte) bool) bool {
	if !r.open('{') {
		return false
	}
	var seen names
	for begun := false; r.next(&begun, '}'); {
		name := r.member(&seen)
		if r.err == nil && !field(name) {
			r.Fail("an unknown field")
		}
	}
	return r.err == nil
}

// value passes any value; depth is how deep it lies, counted from 1.
func (r *Reader) value(depth int) {
	switch c := r.space(); c {
	case '"':
		r.quoted()
	case '{', '[':
		if depth > MaxDepth {
			r.Fail("nested too deep")
			return
		}
		r.pos++
		begun := false
		if c == '[' {
			for r.next(&begun, ']') {
				r.value(depth + 1)
			}
			return
		}
		var seen names
		for r.next(&begun, '}') {
			r.member(&seen)
			r.value(depth + 1)
		}
	case 't':
		r.word("true")
	case 'f':
		r.word("false")
	case 'n':
		r.word("null")
	default:
		r.numeral()
	}
}

func (r *Reader) truth() bool {
	switch r.space() {
	case 't':
		return r.word("true")
	case 'n':
		r.word("null")
	default:
		r.word("false")
	}
	return false
}

// run passes decimal digits and returns how many.
func (r *Reader) run() int {
	from := r.pos
	for r.pos < len(r.src) && r.src[r.pos]-'0' <= 9 {
		r.pos++
	}
	return r.pos - from
}

func (r *Reader) at(c byte) bool { return r.pos < len(r.src) && r.src[r.pos] == c }

// numeral passes a number.
func (r *Reader) numeral() {
	if r.err != nil {
		return
	}
	if r.at('-') {
		r.pos++
	}
	if r.at('0') {
		r.pos++
	} else if r.run() == 0 {
		r.Fail("no JSON")
		return
	}
	if r.at('.') {
		r.pos++
		if r.run() == 0 {
			r.Fail("no JSON")
		}
	}
	if r.at('e') || r.at('E') {
		r.pos++
		if r.at('+') || r.at('-') {
			r.pos++
		}
		if r.run() == 0 {
			r.Fail("no JSON")
		}
	}
}

// digits reads a whole number without fraction and exponent.
func (r *Reader) digits() int64 {
	if r.space() == 'n' {
		r.word("null")
		return 0
	}
	from := r.pos
	minus := r.at('-')
	if minus {
		from++
	}
	r.numeral()
	if r.err != nil || r.pos-from > 18 {
		r.Fail("a number that is too long")
		return 0
	}
	var v int64
	for _, c := range r.src[from:r.pos] {
		if c-'0' > 9 {
			r.Fail("not a whole number")
			return 0
		}
		v = v*10 + int64(c-'0')
	}
	if minus {
		return -v
	}
	return v
}

// quoted reads a string, which is not copied unless something in it is escaped;
// nil is null.
func (r *Reader) quoted() []byte {
	switch r.space() {
	case '"':
	case 'n':
		r.word("null")
		return nil
	default:
		r.Fail("not a string")
		return nil
	}
	rest := r.src[r.pos+1:]
	n := bytes.IndexByte(rest, '"')
	if n < 0 {
		r.Fail("no JSON")
		return nil
	}
	b := rest[:n:n]
	switch plainness(b) {
	case plain:
		r.pos += n + 2
		return b
	case wide:
		if !utf8.Valid(b) {
			r.Fail("a string that is not UTF-8")
			return nil
		}
		r.pos += n + 2
		return b
	}
	return r.escaped()
}

// escaped reads a string with escapes, or what is none.
func (r *Reader) escaped() []byte {
	end := r.pos + 1
	for end < len(r.src) && r.src[end] != '"' {
		if r.src[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(r.src) {
		r.Fail("no JSON")
		return nil
	}
	at := len(r.made)
	made, err := jsontext.AppendUnquote(r.made, r.src[r.pos:end+1])
	if err != nil {
		r.Fail("a string that is none")
		return nil
	}
	r.made = made
	r.pos = end + 1
	return made[at:len(made):len(made)]
}

// What a string's bytes are.
const (
	plain  = iota // ASCII as it stands
	wide          // some of it is not ASCII
	unread        // there are escapes or control characters
)

func plainness(b []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	var odd, all uint64
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		y := x ^ ones*'\\'
		odd |= (x - ones*0x20) &^ x // a byte below 0x20, and more where one is
		odd |= (y - ones) &^ y      // a backslash, and more where one is
		all |= x
		b = b[8:]
	}
	how := plain
	if odd&high != 0 {
		return unread
	}
	if all&high != 0 {
		how = wide
	}
	for _, c := range b {
		switch {
		case c < 0x20 || c == '\\':
			return unread
		case c >= 0x80:
			how = wide
		}
	}
	return how
}
