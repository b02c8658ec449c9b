package peer

import (
	"encoding/binary"
	"fmt"
)

// Calls go as frames where both sides know them: who is connected to says so in
// its welcome (see hello.go), and who connects then begins with framesPreface
// in place of HTTP/2's. All numbers are little-endian.
//
//	 0  4  length of what follows the head
//	 4  1  kind
//	 5  1  code, of an error; else 0
//	 6  2  length of the name, of a call; else 0
//	 8  8  id of the call; of a bye: the last that is answered; else 0
//	16  …  call:   length of the whole body (4), name, body's beginning
//	       answer: length of the whole answer (4), answer's beginning
//	       error:  length of the whole error (4), the error's beginning: an Error
//	               as JSON, nothing for codes turnedBack and brokenOff
//	       more:   more of the body, answer or error that was begun
//	       cancel, ping, pong, bye: nothing
//
// The ids of a connection's calls rise. A frame carries at most maxChunk of a
// body, so that those of others get in between. No handler is called before the
// whole body has come. After a cancel there is no answer, unless it was on its
// way. Frames of an id that is not or no more known are skipped: the two sides
// forget it at different times. Whatever else is not as above ends the
// connection.
const (
	framesOffer   = "frames/1"
	framesPreface = "\x89frames\x01"

	frameHead = 16
	maxChunk  = 64 << 10
	maxName   = 1 << 10
)

type frameKind byte

const (
	frameCall frameKind = 1 + iota
	frameAnswer
	frameError
	frameMore
	frameCancel
	framePing
	framePong
	frameBye
)

type errorCode byte

const (
	handlerError errorCode = 1 + iota // the handler's own
	unknownCall                       // nobody handles that name: no handler ran
	tooLarge                          // neither did one
	turnedBack                        // nor here: the connection takes no more
	brokenOff                         // the handler panicked
)

type head struct {
	size int
	kind frameKind
	code errorCode
	name int
	id   uint64
}

func (h head) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(h.size))
	b = append(b, byte(h.kind), byte(h.code))
	b = binary.LittleEndian.AppendUint16(b, uint16(h.name))
	return binary.LittleEndian.AppendUint64(b, h.id)
}

// parseHead reads a head, of frameHead bytes, and holds it against what every
// frame of its kind keeps to.
func parseHead(b []byte) (head, error) {
	h := head{
		size: int(binary.LittleEndian.Uint32(b)), kind: frameKind(b[4]), code: errorCode(b[5]),
		name: int(binary.LittleEndian.Uint16(b[6:])), id: binary.LittleEndian.Uint64(b[8:]),
	}
	least, most := 0, 0
	switch h.kind {
	case frameCall:
		least, most = 4+h.name, 4+h.name+maxChunk
	case frameAnswer, frameError:
		least, most = 4, 4+maxChunk
	case frameMore:
		least, most = 1, maxChunk
	case frameCancel, framePing, framePong, frameBye:
	default:
		return head{}, fmt.Errorf("frame of kind %d", h.kind)
	}
	switch {
	case h.size < least || h.size > most:
		return head{}, fmt.Errorf("frame of kind %d and %d bytes, not %d to %d", h.kind, h.size, least, most)
	case h.name > maxName || h.name > 0 && h.kind != frameCall:
		return head{}, fmt.Errorf("frame of kind %d with a name of %d bytes", h.kind, h.name)
	case h.kind == frameError && (h.code < handlerError || h.code > brokenOff), h.kind != frameError && h.code != 0:
		return head{}, fmt.Errorf("frame of kind %d with code %d", h.kind, h.code)
	}
	return h, nil
}

// parcel is a body on its way out, in one frame or several.
type parcel struct {
	kind frameKind
	code errorCode
	id   uint64
	name string
	body []byte
	sent int // of body
	more bool
}

// append adds the parcel's next frame to b and reports whether it was the last.
func (p *parcel) append(b []byte) (out []byte, last bool) {
	chunk := p.body[p.sent:min(len(p.body), p.sent+maxChunk)]
	if p.more {
		b = head{size: len(chunk), kind: frameMore, id: p.id}.append(b)
	} else {
		b = head{size: 4 + len(p.name) + len(chunk), kind: p.kind, code: p.code, name: len(p.name), id: p.id}.append(b)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p.body)))
		b = append(b, p.name...)
		p.more = true
	}
	p.sent += len(chunk)
	return append(b, chunk...), p.sent == len(p.body)
}

// arriving is a body that comes in one frame or several. Memory grows with what
// has come, not with what was announced.
type arriving struct {
	total int
	body  []byte
}

func (a *arriving) whole() bool { return len(a.body) == a.total }

// room returns where the next size bytes are to be read into, or nil: they are
// more than was announced, or none though there are some to come.
func (a *arriving) room(size int) []byte {
	n := len(a.body)
	if size > a.total-n || size == 0 && a.total > n {
		return nil
	}
	if a.body == nil {
		a.body = make([]byte, 0, min(a.total, 1<<20))
	}
	if n+size > cap(a.body) {
		grown := make([]byte, n, min(a.total, max(2*cap(a.body), n+size)))
		copy(grown, a.body)
		a.body = grown
	}
	a.body = a.body[:n+size]
	return a.body[n:]
}
