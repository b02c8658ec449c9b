package peer

import (
	"encoding/binary"
	"fmt"
	"net"
)

// What hashicorp/raft's transport sends is a byte, which request, and one
// msgpack map; an InstallSnapshot is followed by as many bytes as its Size
// says. The answers are a msgpack string, the error, and a map or nil. It has
// no bounds when it decodes: a claim of 4 GiB is believed as the bytes come, an
// array of empty maps becomes a hundred times as large in memory, and a nil
// among the entries is a panic.
//
// So what another node sends is read here first, as it comes, byte by byte, and
// the transport gets no byte of what is not of this form:
//
//	request   type (0 append, 1 vote, 2 snapshot, 3 timeout now, 4 pre-vote)
//	          map of at most 64 pairs, key: string of at most 64 bytes
//	              value: nil, bool, number, string, bytes, extension
//	                     in an append, Entries: nil or array of at most 1024,
//	                     each a map like this one, without arrays
//	              in a snapshot, Size: integer, once
//	          for a snapshot, Size bytes
//	answer    string of at most 64 KiB
//	          nil or a map as above, without arrays
//
// and no message is longer than a limit. Nothing is held of it but a key.
const (
	// MaxRPC is how long a message of Raft may be, unless Options say
	// otherwise: not counted what follows an InstallSnapshot. A leader sends
	// entries of 16 MiB at once, or one alone of up to 48 MiB, the largest
	// command; what is around them is some hundred bytes each. It comes with the
	// same again for ever if that does not pass, so there is room to spare.
	MaxRPC = 64 << 20

	maxAnswer  = 1 << 20
	maxError   = 64 << 10
	maxPairs   = 64
	maxKey     = 64
	maxEntries = 1024 // hashicorp/raft allows no more for MaxAppendEntries
)

const (
	raftAppend   = 0
	raftSnapshot = 2
	raftLast     = 4
)

// guarded is a connection of Raft, read through a guard.
type guarded struct {
	*conn
	guard guard
	err   error
}

func newGuarded(c *conn, accepted bool) *guarded {
	g := &guarded{conn: c, guard: guard{limit: maxAnswer}}
	if accepted {
		g.guard = guard{requests: true, limit: c.net.o.MaxRPC}
	}
	return g
}

// Read implements net.Conn. One goroutine at a time reads.
func (g *guarded) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.conn.Read(p)
	good, bad := g.guard.feed(p[:n])
	if bad == nil {
		return n, err
	}
	g.err = fmt.Errorf("peer: node %q sent what is no message of Raft: %w", g.peer.Node, bad)
	g.net.refusals.tell(g.net.logger, "closed another node's Raft connection", "node", g.peer.Node, "error", g.err)
	g.Close()
	return good, g.err
}

var _ net.Conn = (*guarded)(nil)

// guard reads along. Its zero value, with a limit, is at the start of an answer.
type guard struct {
	requests bool
	limit    int64

	rpc  byte
	step step
	used int64 // bytes of this message, announced ones included
	raw  int64 // bytes of a snapshot that are still to come

	// The maps and arrays that it is in. Invariant: at most three, a map, its
	// Entries, and one of them.
	stack []frame
	// The token that it is in: what its first byte was, the bytes of its length
	// that have come, how many are to come, and the same for its value.
	first  byte
	length []byte
	need   int
	skip   int64
	keep   *[]byte // where to keep the value's bytes, if so
	key    []byte
	number []byte

	sawSize, sawEntries bool
	size                int64
	room                [16]byte // for length and number
}

// step is where in a message it is, outside of its maps.
type step byte

const (
	stepStart  step = iota // before the type of a request, or an answer's error
	stepMap                // before the map of either
	stepInside             // in it
)

type frame struct {
	array bool
	left  int  // elements or pairs, the one in hand included
	value bool // of a map: the key has been read
}

// feed reads on. It returns how many bytes may be passed on, all if err is nil.
func (g *guard) feed(b []byte) (int, error) {
	for i := 0; i < len(b); {
		switch {
		case g.raw > 0:
			k := min(g.raw, int64(len(b)-i))
			g.raw -= k
			i += int(k)
		case g.need > 0:
			g.length = append(g.length, b[i])
			if g.need--; g.need == 0 {
				if err := g.measured(); err != nil {
					return i, err
				}
			}
			i++
		case g.skip > 0:
			k := min(g.skip, int64(len(b)-i))
			if g.keep != nil {
				*g.keep = append(*g.keep, b[i:i+int(k)]...)
			}
			if g.skip -= k; g.skip == 0 {
				if err := g.done(); err != nil {
					return i + int(k) - 1, err
				}
			}
			i += int(k)
		default:
			if err := g.begin(b[i]); err != nil {
				return i, err
			}
			i++
		}
	}
	return len(b), nil
}

// begin takes the first byte of a request or of a token.
func (g *guard) begin(c byte) error {
	if g.step == stepStart {
		*g = guard{requests: g.requests, limit: g.limit, stack: g.stack[:0], key: g.key[:0]}
		if g.requests {
			if c > raftLast {
				return fmt.Errorf("request of type %d", c)
			}
			g.rpc, g.step = c, stepMap
			return nil
		}
	}
	if err := g.spend(1); err != nil {
		return err
	}
	g.first, g.length, g.keep = c, g.room[:0], nil
	switch {
	case c <= 0x7f || c >= 0xe0: // small integers
		return g.small(c)
	case c <= 0x8f:
		return g.open(false, int(c&0x0f))
	case c <= 0x9f:
		return g.open(true, int(c&0x0f))
	case c <= 0xbf:
		return g.bytes(true, int64(c&0x1f))
	}
	switch c {
	case 0xc0:
		return g.null()
	case 0xc2, 0xc3: // false, true
		return g.scalar(0)
	case 0xc4, 0xc7, 0xd9: // lengths of one byte: bytes, extension, string
		g.need = 1
	case 0xc5, 0xc8, 0xda, 0xdc, 0xde: // of two; array and map too
		g.need = 2
	case 0xc6, 0xc9, 0xdb, 0xdd, 0xdf: // of four
		g.need = 4
	case 0xca: // floats
		return g.scalar(4)
	case 0xcb:
		return g.scalar(8)
	case 0xcc, 0xcd, 0xce, 0xcf: // unsigned
		return g.integer(1 << (c - 0xcc))
	case 0xd0, 0xd1, 0xd2, 0xd3: // signed
		return g.integer(1 << (c - 0xd0))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // extensions of 1 to 16 bytes, and their type
		return g.scalar(1 + 1<<(c-0xd4))
	default: // 0xc1
		return fmt.Errorf("byte %#x, which msgpack does not use", c)
	}
	return g.spend(int64(g.need))
}

// measured acts on a token whose length has come.
func (g *guard) measured() error {
	var n int64
	for _, c := range g.length {
		n = n<<8 | int64(c)
	}
	switch g.first {
	case 0xc4, 0xc5, 0xc6:
		return g.bytes(false, n)
	case 0xc7, 0xc8, 0xc9:
		return g.scalar(n + 1)
	case 0xd9, 0xda, 0xdb:
		return g.bytes(true, n)
	case 0xdc, 0xdd:
		return g.open(true, int(n))
	default:
		return g.open(false, int(n))
	}
}

// spend counts bytes that belong to the message.
func (g *guard) spend(n int64) error {
	if n > g.limit-g.used {
		return fmt.Errorf("a message of more than %d bytes", g.limit)
	}
	g.used += n
	return nil
}

// top is the frame that it is in, nil outside of all.
func (g *guard) top() *frame {
	if len(g.stack) == 0 {
		return nil
	}
	return &g.stack[len(g.stack)-1]
}

// inValue tells whether a plain value may stand here.
func (g *guard) inValue() bool {
	f := g.top()
	return f != nil && !f.array && f.value
}

func (g *guard) at(key string) bool { return len(g.stack) == 1 && string(g.key) == key }

// scalar is a value of n more bytes.
func (g *guard) scalar(n int64) error {
	if !g.inValue() {
		return fmt.Errorf("byte %#x where no plain value may be", g.first)
	}
	if g.rpc == raftSnapshot && g.requests && g.at("Size") && g.keep == nil {
		return fmt.Errorf("a snapshot's size that is no integer")
	}
	return g.take(n)
}

func (g *guard) small(c byte) error {
	if g.isSize() {
		g.number = append(g.room[8:8], c)
		g.keep = &g.number
	}
	return g.scalar(0)
}

func (g *guard) integer(n int64) error {
	if g.isSize() {
		g.number = g.room[8:8]
		g.keep = &g.number
	}
	return g.scalar(n)
}

func (g *guard) isSize() bool {
	return g.requests && g.rpc == raftSnapshot && g.inValue() && g.at("Size")
}

func (g *guard) null() error {
	if !g.requests && g.step == stepMap {
		g.step = stepStart
		return nil
	}
	return g.scalar(0)
}

// bytes is a string or bytes, of n more bytes.
func (g *guard) bytes(text bool, n int64) error {
	f := g.top()
	switch {
	case f == nil && !g.requests && g.step == stepStart:
		if !text || n > maxError {
			return fmt.Errorf("an answer's error that is none, or of %d bytes", n)
		}
		return g.take(n)
	case f != nil && !f.array && !f.value:
		if !text || n > maxKey {
			return fmt.Errorf("a key that is no string, or of %d bytes", n)
		}
		g.key = g.key[:0]
		g.keep = &g.key
		return g.take(n)
	}
	return g.scalar(n)
}

// take goes over n bytes, and then on.
func (g *guard) take(n int64) error {
	if err := g.spend(n); err != nil {
		return err
	}
	if g.skip = n; n == 0 {
		return g.done()
	}
	return nil
}

// open is the start of a map or an array of n.
func (g *guard) open(array bool, n int) error {
	f := g.top()
	switch {
	case array:
		if !g.requests || g.rpc != raftAppend || !g.inValue() || !g.at("Entries") || g.sawEntries || n > maxEntries {
			return fmt.Errorf("an array of %d where none, or no such, may be", n)
		}
		g.sawEntries = true
	case n > maxPairs:
		return fmt.Errorf("a map of %d pairs", n)
	case f == nil && g.step == stepMap:
		g.step = stepInside
	case f != nil && f.array: // one of the entries
	default:
		return fmt.Errorf("a map where none may be")
	}
	g.stack = append(g.stack, frame{array: array, left: n})
	if n == 0 {
		return g.closed()
	}
	return nil
}

// done is the end of a token that is no map or array.
func (g *guard) done() error {
	f := g.top()
	if f == nil { // an answer's error
		g.step = stepMap
		return nil
	}
	if !f.array && !f.value {
		f.value = true
		return nil
	}
	if g.isSize() {
		if g.sawSize {
			return fmt.Errorf("a snapshot with two sizes")
		}
		g.sawSize = true
		if g.size = g.integerValue(); g.size < 0 {
			return fmt.Errorf("a snapshot of %d bytes", g.size)
		}
	}
	return g.next()
}

// next is the end of an element or a pair.
func (g *guard) next() error {
	f := g.top()
	f.value = false
	if f.left--; f.left == 0 {
		return g.closed()
	}
	return nil
}

// closed is the end of a map or array, and perhaps of all.
func (g *guard) closed() error {
	g.stack = g.stack[:len(g.stack)-1]
	if g.top() != nil {
		return g.next()
	}
	if g.requests && g.rpc == raftSnapshot {
		g.raw = g.size
	}
	g.step = stepStart
	return nil
}

// integerValue is what the number's bytes mean, as the decoder sees it.
func (g *guard) integerValue() int64 {
	var b [8]byte
	n := len(g.number)
	signed := g.first >= 0xd0 && g.first <= 0xd3 || n == 1 && g.first == g.number[0] && g.first >= 0xe0
	if signed && n > 0 && g.number[0]&0x80 != 0 {
		b = [8]byte{255, 255, 255, 255, 255, 255, 255, 255}
	}
	copy(b[8-n:], g.number)
	return int64(binary.BigEndian.Uint64(b[:]))
}
