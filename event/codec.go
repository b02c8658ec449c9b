package event

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Version is the first byte of every encoded command, header, content, policy and result. What
// follows is MessagePack: maps from the names of fields to their values, in the order of the fields
// and without zero values, so that the same value always has the same bytes. Renaming a field is
// therefore a change of the format, which the golden files show. A field that is not known is an
// error: a newer program wrote it, and a node must stop rather than guess.
const Version = 1

// encode returns the version and the encoding of v.
func encode(v fielder) []byte { return encodeWith(func(c *coder) { c.encode(v) }) }

// decode decodes b into v, which is zero.
func decode(b []byte, v fielder) error {
	return decodeWith(b, func(c *coder) { c.decode(v) })
}

// errNotCanonical is the error for a value that the library decodes although it would
// encode it otherwise: bytes in place of a string, nil in place of a struct, a zero.
var errNotCanonical = errors.New("not encoded as this program does")

// EncodeMsgpack implements msgpack.CustomEncoder: an array of digest and bytes.
func (b *Blob) EncodeMsgpack(e *msgpack.Encoder) error {
	return errors.Join(e.EncodeArrayLen(2), e.EncodeBytes(b.Digest[:]), e.EncodeBytes(b.Bytes))
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (b *Blob) DecodeMsgpack(d *msgpack.Decoder) error {
	if err := decodePair(d); err != nil {
		return err
	}
	digest, err := d.DecodeBytes()
	if err == nil && len(digest) != len(b.Digest) {
		err = fmt.Errorf("digest of %d bytes", len(digest))
	}
	if err != nil {
		return err
	}
	copy(b.Digest[:], digest)
	b.Bytes, err = d.DecodeBytes()
	return err
}

// EncodeMsgpack implements msgpack.CustomEncoder: an array of index and number.
func (r *Ref) EncodeMsgpack(e *msgpack.Encoder) error {
	return errors.Join(e.EncodeArrayLen(2), e.EncodeUint(r.Index), e.EncodeUint(uint64(r.Number)))
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (r *Ref) DecodeMsgpack(d *msgpack.Decoder) error {
	if err := decodePair(d); err != nil {
		return err
	}
	index, err := d.DecodeUint64()
	if err != nil {
		return err
	}
	number, err := d.DecodeUint64()
	if err == nil && number > math.MaxUint32 {
		err = fmt.Errorf("number %d is out of range", number)
	}
	*r = Ref{index, uint32(number)}
	return err
}

func decodePair(d *msgpack.Decoder) error {
	n, err := d.DecodeArrayLen()
	if err == nil && n != 2 {
		err = fmt.Errorf("%d values in place of two", n)
	}
	return err
}

// EncodeCommand returns a command's bytes. The node that received the request encodes
// it once; the leader only groups the bytes.
func EncodeCommand(c *Command) []byte { return encode(c) }

// Decode decodes what EncodeCommand returned into c, which is zero.
func (c *Command) Decode(b []byte) error {
	err := decode(b, c)
	hot := c.Produce != nil || c.Lease != nil || c.Settle != nil || c.Transaction != nil
	if err == nil && !hot && !bytes.Equal(EncodeCommand(c), b) {
		err = errNotCanonical
	}
	if err == nil && c.PutQueue != nil {
		err = c.PutQueue.Policy.known()
	}
	if err == nil && c.Define != nil {
		for i := range c.Define.Queues {
			err = errors.Join(err, c.Define.Queues[i].Policy.known())
		}
	}
	if err != nil {
		return fmt.Errorf("command: %w", err)
	}
	return nil
}

// known returns an error if a choice of the policy is not one that this program knows.
func (p *Policy) known() error {
	if int(p.Ordering) < len(orderingNames) && int(p.OnRetry) < len(onRetryNames) &&
		int(p.OnDead) < len(onDeadNames) && int(p.DedupBy) < len(dedupByNames) &&
		int(p.OnExpired) < len(onExpiredNames) && int(p.DedupUntil) < len(dedupUntilNames) {
		return nil
	}
	return errors.New("policy with an unknown ordering, on_retry, on_dead, on_expired " +
		"or deduplication")
}

// AppendHeader appends the header of an event's record to b: everything but what the record itself
// carries (id, subject, back-pointer, alias, content).
func AppendHeader(b []byte, e *Event) []byte { return appendTo(b, e) }

// DecodeHeader fills an event from its record's header.
func DecodeHeader(b []byte, e *Event) error {
	e.Queue = ""
	err := decode(b, e)
	if err == nil && e.Type >= NumTypes {
		err = fmt.Errorf("event type %d is not known", e.Type)
	}
	other := e.Policy != nil || e.Refs != nil || e.Cause != nil // which the library decodes
	if err == nil && other && !bytes.Equal(AppendHeader(nil, e), b) {
		err = errNotCanonical
	}
	if err == nil && e.Policy != nil {
		err = e.Policy.known()
	}
	if err != nil {
		return fmt.Errorf("event header: %w", err)
	}
	return nil
}

// HeaderKind returns type and queue of a header, and the worker of a leased event, without decoding
// the rest. ok is false if it is not as this program encodes it: decode it then.
func HeaderKind(b []byte) (t Type, queue, worker []byte, ok bool) {
	// The version, how many fields there are, and the first one's name and value.
	if len(b) < 5 || b[0] != Version || b[1]&0xf0 != msgpcode.FixedMapLow ||
		string(b[2:4]) != "\xa1a" || b[4] >= byte(NumTypes) {
		return 0, nil, nil, false
	}
	t, b = Type(b[4]), b[5:]
	if len(b) > 0 && string(b[:min(2, len(b))]) == "\xa1b" {
		if queue, b, ok = cutValue(b[2:]); !ok {
			return 0, nil, nil, false
		}
	}
	for t == Leased && len(b) > 0 && worker == nil { // names have one letter
		name := b[min(1, len(b)-1)]
		var v []byte
		if v, b, ok = cutValue(b[min(2, len(b)):]); !ok {
			return 0, nil, nil, false
		}
		if name == 'o' {
			worker = v
		}
	}
	return t, queue, worker, true
}

// cutValue returns the bytes of a string or blob that b begins with, nil for a number, and what
// follows. ok is false for anything else.
func cutValue(b []byte) (v, rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, nil, false
	}
	code, head, n := b[0], 1, 0
	switch {
	case code <= msgpcode.PosFixedNumHigh:
	case msgpcode.IsFixedString(code):
		n = int(code & msgpcode.FixedStrMask)
	case code >= msgpcode.Uint8 && code <= msgpcode.Uint64:
		head += 1 << (code - msgpcode.Uint8)
	case (code == msgpcode.Str8 || code == msgpcode.Bin8) && len(b) > 1:
		head, n = 2, int(b[1])
	default:
		return nil, nil, false
	}
	if head+n > len(b) {
		return nil, nil, false
	}
	return b[head : head+n], b[head+n:], true
}

// EncodePolicy returns a policy's bytes outside an event, as a checkpoint has them.
func EncodePolicy(p *Policy) []byte {
	return encodeWith(func(c *coder) { c.put(p) })
}

// DecodePolicy is the inverse of EncodePolicy.
func DecodePolicy(b []byte) (*Policy, error) {
	p := &Policy{}
	err := decodeWith(b, func(c *coder) { c.get(p) })
	if err == nil && !bytes.Equal(EncodePolicy(p), b) {
		err = errNotCanonical
	}
	if err == nil {
		err = p.known()
	}
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return p, nil
}

// EncodeContent returns user data as a blob: its bytes and their SHA-256. An empty
// Content is the zero Blob.
func EncodeContent(c *Content) Blob {
	_, blob := AppendContent(nil, c)
	return blob
}

// AppendContent appends a content's bytes to b; the blob refers to them.
func AppendContent(b []byte, c *Content) ([]byte, Blob) {
	n := len(b)
	b = appendTo(slices.Grow(b, len(c.Payload)+64), c)
	if len(b) == n+2 { // the version and an empty map
		return b[:n], Blob{}
	}
	return b, Blob{Digest: sha256.Sum256(b[n:]), Bytes: b[n:len(b):len(b)]}
}

// DecodeContent is the inverse of EncodeContent. Nil bytes are an empty Content.
func DecodeContent(b []byte) (*Content, error) {
	c := &Content{}
	if len(b) == 0 {
		return c, nil
	}
	if err := decode(b, c); err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	return c, nil
}

// EncodeResult returns a result's bytes, for an answer that is kept. A lease's messages
// and a mark's digest are not part of it: neither takes an Idempotency-Key.
func EncodeResult(s *Result) []byte {
	kept := *s
	kept.Leased, kept.Digest, kept.Problem, kept.Kept = nil, Hash{}, nil, Ref{}
	return encode(&kept)
}

// DecodeResult is the inverse of EncodeResult.
func DecodeResult(b []byte) (*Result, error) {
	s := &Result{}
	if err := decode(b, s); err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	return s, nil
}

// Answer is the leader's answer to one command that a node forwarded: Result, or one of the others.
type Answer struct {
	Result Result
	// Refusal, if set, replaces the result: the command was not executed, or its
	// outcome is not known (Problem.Unknown).
	Refusal *Problem
	// Back: the command was not proposed and never will be by this leader; it can be
	// sent to the next one.
	Back bool
}

// EncodeAnswers returns the bytes of a group's answers, in the group's order. Unlike
// EncodeResult it leaves nothing out.
func EncodeAnswers(group []Answer) []byte {
	return encodeWith(func(c *coder) { elements(c, &group) })
}

// DecodeAnswers is the inverse of EncodeAnswers for a group of want answers.
func DecodeAnswers(b []byte, want int) ([]Answer, error) {
	var group []Answer
	err := decodeWith(b, func(c *coder) { elements(c, &group) })
	if err != nil {
		return nil, fmt.Errorf("answers: %w", err)
	}
	if len(group) != want {
		return nil, fmt.Errorf("answers: %d for %d commands", len(group), want)
	}
	return group, nil
}
