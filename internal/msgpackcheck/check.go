// Package msgpackcheck checks MessagePack that clients or nodes sent before a decoder sees it.
// vmihailenco/msgpack recurses without a limit and accepts duplicate names, invalid UTF-8 and bytes
// after the end.
package msgpackcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and maps may be nested.
const MaxDepth = 64

var errShort = errors.New("unexpected end")

// checker has what is not checked yet, and the first error, after which it takes nothing more.
type checker struct {
	b   []byte
	err error
}

// few is the number of names of a map that are compared one by one.
const few = 16

// Check returns nil if b is exactly one well-formed value: nested at most MaxDepth deep, with valid
// UTF-8 in strings, with strings as the names of maps and no name twice in one map. No length
// exceeds the bytes that follow it. The data of extensions is not checked.
func Check(b []byte) error {
	n, err := First(b)
	if err == nil && n < len(b) {
		err = fmt.Errorf("%d bytes after the end", len(b)-n)
	}
	return err
}

// First checks the value that b begins with, as Check does, and returns its length.
func First(b []byte) (int, error) {
	c := checker{b: b}
	c.value(0)
	n := len(b) - len(c.b)
	if c.err != nil {
		return n, fmt.Errorf("byte %d: %w", n, c.err)
	}
	return n, nil
}

// value checks the next value, which is inside depth arrays and maps.
func (c *checker) value(depth int) {
	k, ok := c.code()
	switch {
	case !ok:
	case isText(k):
		c.text(k)
	case k < 0x80, k >= 0xe0, k == 0xc0, k == 0xc2, k == 0xc3: // small integers, nil, booleans
	case k&0xf0 == 0x80:
		c.items(int(k&0x0f), true, depth)
	case k&0xf0 == 0x90:
		c.items(int(k&0x0f), false, depth)
	case k >= 0xc4 && k <= 0xc6: // bytes
		c.take(c.length(1 << (k - 0xc4)))
	case k >= 0xc7 && k <= 0xc9: // an extension
		c.take(c.length(1<<(k-0xc7)) + 1)
	case k >= 0xca && k <= 0xd3: // numbers
		c.take([...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[k-0xca])
	case k >= 0xd4 && k <= 0xd8: // an extension of fixed length
		c.take(1 + 1<<(k-0xd4))
	case k >= 0xdc:
		c.items(c.length(2<<(k&1)), k >= 0xde, depth)
	default:
		c.err = fmt.Errorf("unknown code %#x", k)
	}
}

// items checks the n values of an array, or the n names and values of a map.
func (c *checker) items(n int, isMap bool, depth int) {
	switch {
	case c.err != nil:
		return
	case depth == MaxDepth:
		c.err = fmt.Errorf("nested deeper than %d", MaxDepth)
		return
	case n > len(c.b) || isMap && 2*n > len(c.b): // each takes a byte at least
		c.err = errShort
		return
	}
	var array [few][]byte
	names := array[:0] // on the stack
	var seen map[string]bool
	if isMap && n > few {
		seen = make(map[string]bool, n)
	}
	for range n {
		if isMap {
			name := c.name()
			same := func(other []byte) bool { return string(other) == string(name) }
			if c.err == nil && (seen[string(name)] || slices.ContainsFunc(names, same)) {
				c.err = fmt.Errorf("name %.64q appears twice", string(name))
			}
			if seen != nil {
				seen[string(name)] = true
			} else {
				names = append(names, name)
			}
		}
		if c.value(depth + 1); c.err != nil {
			return
		}
	}
}

func (c *checker) name() []byte {
	k, ok := c.code()
	switch {
	case !ok:
	case !isText(k):
		c.err = fmt.Errorf("code %#x where a name belongs", k)
	default:
		return c.text(k)
	}
	return nil
}

func isText(k byte) bool { return k&0xe0 == 0xa0 || k >= 0xd9 && k <= 0xdb }

// text checks the string that a code begins.
func (c *checker) text(k byte) []byte {
	n := int(k & 0x1f)
	if k >= 0xd9 {
		n = c.length(1 << (k - 0xd9))
	}
	s := c.take(n)
	if c.err == nil && !utf8.Valid(s) {
		c.err = errors.New("a string is not UTF-8")
	}
	return s
}

// length takes a big-endian number of 1, 2 or 4 bytes.
func (c *checker) length(size int) int {
	var full [4]byte
	copy(full[4-size:], c.take(size))
	return int(binary.BigEndian.Uint32(full[:]))
}

func (c *checker) code() (k byte, ok bool) {
	if len(c.b) == 0 || c.err != nil {
		c.take(1)
		return 0, false
	}
	k, c.b = c.b[0], c.b[1:]
	return k, true
}

// take returns the next n bytes, or nil after an error.
func (c *checker) take(n int) (b []byte) {
	switch {
	case c.err != nil:
	case n > len(c.b):
		c.err = errShort
	default:
		b, c.b = c.b[:n], c.b[n:]
	}
	return b
}
