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

// checker has what is not checked yet.
type checker struct{ b []byte }

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
	c := checker{b}
	err := c.value(0)
	n := len(b) - len(c.b)
	if err != nil {
		err = fmt.Errorf("byte %d: %w", n, err)
	}
	return n, err
}

// value checks the next value, which is inside depth arrays and maps.
func (c *checker) value(depth int) error {
	k, err := c.code()
	if err != nil {
		return err
	}
	switch {
	case isText(k):
		_, err = c.text(k)
	case k < 0x80, k >= 0xe0, k == 0xc0, k == 0xc2, k == 0xc3: // small integers, nil, booleans
	case k&0xf0 == 0x80:
		return c.items(int(k&0x0f), true, depth)
	case k&0xf0 == 0x90:
		return c.items(int(k&0x0f), false, depth)
	case k >= 0xc4 && k <= 0xc6: // bytes
		err = c.skip(1<<(k-0xc4), 0)
	case k >= 0xc7 && k <= 0xc9: // an extension
		err = c.skip(1<<(k-0xc7), 1)
	case k >= 0xca && k <= 0xd3: // numbers
		_, err = c.take([...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[k-0xca])
	case k >= 0xd4 && k <= 0xd8: // an extension of fixed length
		_, err = c.take(1 + 1<<(k-0xd4))
	case k >= 0xdc:
		n, err := c.length(2 << (k & 1))
		if err != nil {
			return err
		}
		return c.items(n, k >= 0xde, depth)
	default:
		err = fmt.Errorf("unknown code %#x", k)
	}
	return err
}

// items checks the n values of an array, or the n names and values of a map.
func (c *checker) items(n int, isMap bool, depth int) error {
	if depth == MaxDepth {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	if n > len(c.b) || isMap && 2*n > len(c.b) { // each takes a byte at least
		return errShort
	}
	var array [few][]byte
	names := array[:0] // on the stack
	var seen map[string]bool
	if isMap && n > few {
		seen = make(map[string]bool, n)
	}
	for range n {
		if isMap {
			name, err := c.name()
			if err != nil {
				return err
			}
			same := func(other []byte) bool { return string(other) == string(name) }
			if seen[string(name)] || slices.ContainsFunc(names, same) {
				return fmt.Errorf("name %.64q appears twice", string(name))
			}
			if seen != nil {
				seen[string(name)] = true
			} else {
				names = append(names, name)
			}
		}
		if err := c.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) name() ([]byte, error) {
	k, err := c.code()
	if err != nil {
		return nil, err
	}
	if !isText(k) {
		return nil, fmt.Errorf("code %#x where a name belongs", k)
	}
	return c.text(k)
}

func isText(k byte) bool { return k&0xe0 == 0xa0 || k >= 0xd9 && k <= 0xdb }

// text checks the string that a code begins.
func (c *checker) text(k byte) ([]byte, error) {
	n := int(k & 0x1f)
	if k >= 0xd9 {
		var err error
		if n, err = c.length(1 << (k - 0xd9)); err != nil {
			return nil, err
		}
	}
	s, err := c.take(n)
	if err == nil && !utf8.Valid(s) {
		err = errors.New("a string is not UTF-8")
	}
	return s, err
}

// skip passes over a length of size bytes, extra bytes, and that many bytes of data.
func (c *checker) skip(size, extra int) error {
	n, err := c.length(size)
	if err == nil {
		_, err = c.take(n + extra)
	}
	return err
}

// length takes a big-endian number of 1, 2 or 4 bytes.
func (c *checker) length(size int) (int, error) {
	b, err := c.take(size)
	if err != nil {
		return 0, err
	}
	var full [4]byte
	copy(full[4-size:], b)
	return int(binary.BigEndian.Uint32(full[:])), nil
}

func (c *checker) code() (byte, error) {
	b, err := c.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

func (c *checker) take(n int) ([]byte, error) {
	if n > len(c.b) {
		return nil, errShort
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b, nil
}
