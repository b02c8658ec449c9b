// Package msgpackcheck checks MessagePack that clients or nodes sent, in one pass and without
// recursion, before a decoder sees it. vmihailenco/msgpack recurses without a limit and accepts
// duplicate names, invalid UTF-8 and bytes after the end.
package msgpackcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and maps may be nested.
const MaxDepth = 64

var errShort = errors.New("unexpected end")

// container is an open array or map.
type container struct {
	left  int // values still to come, names included
	isMap bool
	names int                 // where its names begin in checker.names
	seen  map[string]struct{} // its names, once they are too many to compare one by one
}

type checker struct {
	b     []byte
	names [][]byte // of all open maps
	open  []container
}

// Check returns nil if b is exactly one well-formed value: nested at most MaxDepth deep, with
// valid UTF-8 in strings, with strings as the names of maps and no name twice in one map. No
// length exceeds the bytes that follow it. The data of extensions is not looked into.
func Check(b []byte) error {
	c := checkers.Get().(*checker)
	c.b = b
	err := c.check(len(b))
	clear(c.names[:cap(c.names)])
	clear(c.open[:cap(c.open)])
	c.b, c.names, c.open = nil, c.names[:0], c.open[:0]
	if cap(c.names) < 1000 {
		checkers.Put(c)
	}
	return err
}

var checkers = sync.Pool{New: func() any { return &checker{} }}

func (c *checker) check(size int) error {
	for {
		if err := c.value(); err != nil {
			return fmt.Errorf("byte %d: %w", size-len(c.b), err)
		}
		for len(c.open) > 0 && c.open[len(c.open)-1].left == 0 {
			c.names = c.names[:c.open[len(c.open)-1].names]
			c.open = c.open[:len(c.open)-1]
		}
		if len(c.open) == 0 {
			break
		}
	}
	if len(c.b) > 0 {
		return fmt.Errorf("%d bytes after the end", len(c.b))
	}
	return nil
}

// value checks the next value; of an array or a map only its head.
func (c *checker) value() error {
	code, err := c.take(1)
	if err != nil {
		return err
	}
	isName := false
	if n := len(c.open); n > 0 {
		top := &c.open[n-1]
		isName = top.isMap && top.left%2 == 0
		top.left--
	}
	k := code[0]
	switch {
	case k&0xe0 == 0xa0:
		return c.text(int(k&0x1f), isName)
	case k >= 0xd9 && k <= 0xdb:
		n, err := c.length(1 << (k - 0xd9))
		if err != nil {
			return err
		}
		return c.text(n, isName)
	case isName:
		return fmt.Errorf("code %#x where a name belongs", k)
	case k < 0x80, k >= 0xe0, k == 0xc0, k == 0xc2, k == 0xc3:
		return nil
	case k&0xf0 == 0x80:
		return c.enter(int(k&0x0f), true)
	case k&0xf0 == 0x90:
		return c.enter(int(k&0x0f), false)
	case k >= 0xc4 && k <= 0xc6:
		return c.skip(1<<(k-0xc4), 0)
	case k >= 0xc7 && k <= 0xc9:
		return c.skip(1<<(k-0xc7), 1)
	case k >= 0xca && k <= 0xd3:
		_, err := c.take([...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[k-0xca])
		return err
	case k >= 0xd4 && k <= 0xd8:
		_, err := c.take(1 + 1<<(k-0xd4))
		return err
	case k == 0xdc, k == 0xdd, k == 0xde, k == 0xdf:
		n, err := c.length(2 << (k & 1))
		if err != nil {
			return err
		}
		return c.enter(n, k >= 0xde)
	}
	return fmt.Errorf("unknown code %#x", k)
}

// enter opens an array of n values or a map of n pairs.
func (c *checker) enter(n int, isMap bool) error {
	if len(c.open) == MaxDepth {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	if isMap {
		n *= 2
	}
	if n > len(c.b) { // each value takes a byte at least
		return errShort
	}
	c.open = append(c.open, container{left: n, isMap: isMap, names: len(c.names)})
	return nil
}

// text checks n bytes of a string.
func (c *checker) text(n int, isName bool) error {
	s, err := c.take(n)
	if err != nil {
		return err
	}
	if !utf8.Valid(s) {
		return errors.New("a string is not UTF-8")
	}
	if isName {
		return c.name(s)
	}
	return nil
}

// name records a name of the innermost map.
func (c *checker) name(s []byte) error {
	const few = 16
	top := &c.open[len(c.open)-1]
	mine := c.names[top.names:]
	if top.seen == nil && len(mine) == few {
		top.seen = make(map[string]struct{}, 2*few)
		for _, name := range mine {
			top.seen[string(name)] = struct{}{}
		}
	}
	twice := false
	if top.seen != nil {
		_, twice = top.seen[string(s)]
		top.seen[string(s)] = struct{}{}
	} else {
		for _, name := range mine {
			twice = twice || string(name) == string(s)
		}
		c.names = append(c.names, s)
	}
	if twice {
		return fmt.Errorf("name %.64q appears twice", s)
	}
	return nil
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

func (c *checker) take(n int) ([]byte, error) {
	if n > len(c.b) {
		return nil, errShort
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b, nil
}
