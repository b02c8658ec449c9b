package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// What is said first on every connection, inside TLS if there is any. Who
// connects sends a hello, the other side one answer; after a welcome the
// connection belongs to its kind. All numbers are little-endian.
//
//	hello                                  answer
//	 0   8  magic  89 "qlogd" 0d 0a         0   8  the same magic
//	 8   1  version, 1                      8   1  version, 1
//	 9   1  kind: 1 raft 2 rpc 3 bulk       9   1  verdict: 1 welcome 2 refused
//	        4 who (answered, then closed)
//	10   2  length of what follows         10   2  length of what follows
//	12   …  seven texts, of who connects:  12   …  six texts, of who answers:
//	        cluster, node, incarnation,            cluster, node, incarnation,
//	        raft, http; and of whom it             raft, http; and why it
//	        looks for: node, incarnation           refused, or ""
//
// A text is its length (2 bytes) and that many bytes of UTF-8 without control
// characters. The first twelve bytes mean the same in every version, so that
// another version can be refused in words.
const (
	magic   = "\x89qlogd\r\n"
	version = 1

	headSize = len(magic) + 4
	// maxHello bounds a whole hello or answer, head included.
	maxHello = 4 << 10
	// maxReason bounds what is told about a refusal.
	maxReason = 1 << 10
)

type kind byte

const (
	kindRaft kind = 1 + iota
	kindRPC
	kindBulk
	kindWho
)

const (
	verdictWelcome = 1 + iota
	verdictRefused
)

// errStranger is what comes of bytes that no qlogd sends.
var errStranger = errors.New("not a node of qlogd")

type hello struct {
	kind   kind
	from   Identity
	target Target // without the address
}

type answer struct {
	refused bool
	from    Identity
	reason  string
}

func (h hello) encode() ([]byte, error) {
	return encode(byte(h.kind), append(h.from.texts(), h.target.Node, h.target.Incarnation))
}

func (a answer) encode() ([]byte, error) {
	verdict := byte(verdictWelcome)
	if a.refused {
		verdict = verdictRefused
	}
	return encode(verdict, append(a.from.texts(), clip(a.reason)))
}

func (i Identity) texts() []string {
	return []string{i.Cluster, i.Node, i.Incarnation, i.Raft, i.HTTP}
}

func identity(t []string) Identity {
	return Identity{Cluster: t[0], Node: t[1], Incarnation: t[2], Raft: t[3], HTTP: t[4]}
}

func readHello(r io.Reader) (hello, error) {
	what, t, err := read(r, 7)
	if err != nil {
		return hello{}, fmt.Errorf("hello: %w", err)
	}
	if k := kind(what); k < kindRaft || k > kindWho {
		return hello{}, fmt.Errorf("hello: kind %d is not known", what)
	}
	return hello{kind: kind(what), from: identity(t), target: Target{Node: t[5], Incarnation: t[6]}}, nil
}

func readAnswer(r io.Reader) (answer, error) {
	what, t, err := read(r, 6)
	if err != nil {
		return answer{}, fmt.Errorf("answer: %w", err)
	}
	if what != verdictWelcome && what != verdictRefused {
		return answer{}, fmt.Errorf("answer: verdict %d is not known", what)
	}
	return answer{refused: what == verdictRefused, from: identity(t), reason: t[5]}, nil
}

func encode(what byte, texts []string) ([]byte, error) {
	b := append(make([]byte, 0, 256), magic...)
	b = append(b, version, what, 0, 0)
	for _, t := range texts {
		if err := proper(t); err != nil {
			return nil, err
		}
		if len(b)+2+len(t) > maxHello {
			return nil, fmt.Errorf("identity of more than %d bytes", maxHello)
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(len(t)))
		b = append(b, t...)
	}
	binary.LittleEndian.PutUint16(b[headSize-2:], uint16(len(b)-headSize))
	return b, nil
}

// versionError is told to the other side, where it can be read.
type versionError byte

func (v versionError) Error() string {
	return fmt.Sprintf("protocol version %d is not known here, only %d", byte(v), version)
}

// read reads one hello or answer of n texts. It reads not a byte more, and
// holds at most maxHello of them.
func read(r io.Reader, n int) (what byte, texts []string, err error) {
	head := make([]byte, headSize)
	// Byte by byte as they come: a stranger is recognised by his first.
	for have := 0; have < len(head); {
		k, err := r.Read(head[have:])
		have += k
		m := min(have, len(magic))
		if !bytes.Equal(head[:m], []byte(magic)[:m]) {
			return 0, nil, errStranger
		}
		if err != nil && have < len(head) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
	}
	if v := head[len(magic)]; v != version {
		return 0, nil, versionError(v)
	}
	size := int(binary.LittleEndian.Uint16(head[headSize-2:]))
	if size > maxHello-headSize {
		return 0, nil, fmt.Errorf("%d bytes announced, more than %d", size, maxHello-headSize)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	for i := range n {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return 0, nil, fmt.Errorf("text %d of %d is cut off", i+1, n)
		}
		end := 2 + int(binary.LittleEndian.Uint16(b))
		t := string(b[2:end])
		if err := proper(t); err != nil {
			return 0, nil, err
		}
		texts, b = append(texts, t), b[end:]
	}
	if len(b) > 0 {
		return 0, nil, fmt.Errorf("%d bytes after the last text", len(b))
	}
	return head[len(magic)+1], texts, nil
}

// proper tells whether a text can be shown to people as it is.
func proper(t string) error {
	if !utf8.ValidString(t) {
		return errors.New("text is not UTF-8")
	}
	for _, r := range t {
		if unicode.IsControl(r) {
			return errors.New("text with control characters")
		}
	}
	return nil
}

// clip makes a proper text of at most maxReason bytes of s.
func clip(s string) string {
	var b []byte
	for _, r := range s {
		if unicode.IsControl(r) {
			r = ' '
		}
		if len(b)+utf8.RuneLen(r) > maxReason {
			break
		}
		b = utf8.AppendRune(b, r)
	}
	return string(b)
}
