package event

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/internal/msgpackcheck"
)

// Version is the first byte of every encoded command, header, content, policy and result. What
// follows is MessagePack: maps from the names of fields to their values, without zero values.
// Renaming a field is therefore a change of the format, which the golden files show. A field that
// is not known is an error: a newer program wrote it, and a node must stop rather than guess.
const Version = 1

// encoding is an encoder with what it writes to.
type encoding struct {
	buffer
	enc *msgpack.Encoder
}

var encodings = sync.Pool{New: func() any {
	w := &encoding{}
	w.enc = msgpack.NewEncoder(&w.buffer)
	return w
}}

// appendEncoded appends the version and the encoding of v to b. It panics where the library
// fails, which it does for no type of this package.
func appendEncoded(b []byte, v any) []byte {
	w := encodings.Get().(*encoding)
	w.b = append(b, Version)
	w.enc.Reset(&w.buffer)
	w.enc.UseCompactInts(true)
	w.enc.SetOmitEmpty(true)
	if err := w.enc.Encode(v); err != nil {
		panic(fmt.Sprintf("event: encode %T: %v", v, err))
	}
	b = w.b
	w.b = nil
	encodings.Put(w)
	return b
}

// decoding is a decoder with what it reads from.
type decoding struct {
	source
	dec *msgpack.Decoder
}

var decodings = sync.Pool{New: func() any {
	r := &decoding{}
	r.dec = msgpack.NewDecoder(&r.source)
	return r
}}

// decode decodes b into v. Fields that are bytes may be parts of b. last is a string that b
// probably contains.
func decode(b []byte, last string, v any) error {
	if len(b) == 0 {
		return errors.New("empty")
	}
	if b[0] != Version {
		return fmt.Errorf("version %d is not this program's %d", b[0], Version)
	}
	b = b[1:]
	if err := msgpackcheck.Check(b); err != nil {
		return err
	}
	r := decodings.Get().(*decoding)
	r.source = source{b: b, all: b, last: last}
	r.dec.Reset(&r.source)
	r.dec.DisallowUnknownFields(true)
	err := r.dec.Decode(v)
	if err == nil && len(r.b) > 0 {
		err = fmt.Errorf("%d bytes after the end", len(r.b))
	}
	r.source = source{}
	decodings.Put(r)
	return err
}

// EncodeCommand returns a command's bytes. The node that received the request encodes it once;
// the leader only groups the bytes.
func EncodeCommand(c *Command) []byte {
	return appendEncoded(make([]byte, 0, c.size()), c)
}

// size returns about how many bytes a command takes.
func (c *Command) size() int {
	n := 128
	if c.Produce != nil {
		n += c.Produce.size()
	}
	if c.Settle != nil {
		n += settleSize(c.Settle.Items)
	}
	if c.Transaction != nil {
		n += settleSize(c.Transaction.Settle)
		for i := range c.Transaction.Produce {
			n += c.Transaction.Produce[i].size()
		}
	}
	if c.Replay != nil {
		for i := range c.Replay.Items {
			n += 128 + len(c.Replay.Items[i].Content.Bytes)
		}
	}
	if c.Carry != nil {
		for i := range c.Carry.Items {
			n += 128 + len(c.Carry.Items[i].Content.Bytes)
		}
	}
	return n
}

func (q *Produce) size() int {
	n := 64
	for i := range q.Messages {
		m := &q.Messages[i]
		n += 96 + len(m.Key) + len(m.Kind) + len(m.Content.Bytes)
	}
	return n
}

func settleSize(items []SettleItem) int {
	n := 32 * len(items)
	for i := range items {
		if b := items[i].Content.Bytes; b != nil {
			n += 48 + len(b)
		}
	}
	return n
}

// DecodeCommand is the inverse of EncodeCommand. The contents are not copied: they are parts of
// b, which must not change while they are used.
func DecodeCommand(b []byte) (*Command, error) {
	c := &Command{}
	if err := decode(b, "", c); err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	if c.Produce == nil && c.Lease == nil && c.Settle == nil && c.Transaction == nil {
		if !bytes.Equal(EncodeCommand(c), b) {
			return nil, fmt.Errorf("command: %w", errNotCanonical)
		}
	}
	if c.PutQueue != nil {
		if err := c.PutQueue.Policy.known(); err != nil {
			return nil, fmt.Errorf("command: %w", err)
		}
	}
	if c.Define != nil {
		for i := range c.Define.Queues {
			if err := c.Define.Queues[i].Policy.known(); err != nil {
				return nil, fmt.Errorf("command: %w", err)
			}
		}
	}
	return c, nil
}

// errNotCanonical is the error for what the library decodes although it would encode it
// otherwise: a number that is out of range, bytes in place of a string, a value of zero.
var errNotCanonical = errors.New("not encoded as this program does")

// known returns an error if a choice of the policy is not one that this program knows.
func (p *Policy) known() error {
	if int(p.Ordering) < len(orderingNames) && int(p.OnRetry) < len(onRetryNames) &&
		int(p.OnDead) < len(onDeadNames) && int(p.DedupBy) < len(dedupByNames) {
		return nil
	}
	return errors.New("policy with an unknown ordering, on_retry, on_dead or deduplication")
}

// EncodeHeader returns the header of an event's record: everything but what the record itself
// carries (id, subject, back-pointer, alias, content).
func EncodeHeader(e *Event) []byte { return appendEncoded(nil, e) }

// DecodeHeader fills an event from its record's header. If the event is of the queue that
// e.Queue names already, the name's memory is shared.
func DecodeHeader(b []byte, e *Event) error {
	last := e.Queue
	e.Queue = ""
	err := decode(b, last, e)
	if err == nil && (e.Policy != nil || e.Refs != nil) && !bytes.Equal(EncodeHeader(e), b) {
		err = errNotCanonical
	}
	if err == nil && e.Policy != nil {
		err = e.Policy.known()
	}
	if err != nil {
		return fmt.Errorf("event header: %w", err)
	}
	e.Definition = slices.Clone(e.Definition)
	return nil
}

// EncodePolicy returns a policy's bytes outside an event, as a checkpoint has them.
func EncodePolicy(p *Policy) []byte { return appendEncoded(nil, p) }

// DecodePolicy is the inverse of EncodePolicy.
func DecodePolicy(b []byte) (*Policy, error) {
	p := &Policy{}
	err := decode(b, "", p)
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

// EncodeContent returns what users wrote as a blob: its bytes and their SHA-256. An empty
// Content is the zero Blob.
func EncodeContent(c *Content) Blob { return c.EncodeIn(new([]byte)) }

// EncodeIn is EncodeContent into *room, behind what is in it: the blob shares its memory. Where
// there is not enough room, *room becomes a new slice of twice the size.
func (c *Content) EncodeIn(room *[]byte) Blob {
	size := c.size()
	if cap(*room)-len(*room) < size {
		*room = make([]byte, 0, max(size, 2*cap(*room)))
	}
	begin := len(*room)
	b := appendEncoded(*room, c)
	if len(b) == begin+2 { // the version and an empty map
		return Blob{}
	}
	*room = b
	b = b[begin:len(b):len(b)]
	return Blob{Digest: sha256.Sum256(b), Bytes: b}
}

// size returns the most bytes that a content can take.
func (c *Content) size() int {
	const field = 2 + 5 // a name, and a length
	n := 4 + 11*field + len(c.Payload) + len(c.ContentType) + len(c.CorrelationID) +
		len(c.Error) + len(c.Result) + len(c.Answer) + len(c.Spec) + len(c.Original) + len(c.Why)
	for i := range c.Headers {
		n += 3 + 2*field + len(c.Headers[i].Name) + len(c.Headers[i].Value)
	}
	return n
}

// DecodeContent is the inverse of EncodeContent. Nil bytes are an empty Content. Payload, result
// and answer are not copied: they are parts of b.
func DecodeContent(b []byte) (*Content, error) {
	c := &Content{}
	if err := c.Decode(b); err != nil {
		return nil, err
	}
	return c, nil
}

// Decode is DecodeContent into c, which must be empty.
func (c *Content) Decode(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := decode(b, "", c); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	return nil
}

// EncodeResult returns a result's bytes, for an answer that is kept. A lease's messages and a
// mark's digest are not part of it: neither takes an Idempotency-Key.
func EncodeResult(s *Result) []byte {
	kept := *s
	kept.Leased, kept.Digest, kept.Problem, kept.Kept = nil, Hash{}, nil, Ref{}
	return appendEncoded(make([]byte, 0, s.size()), &kept)
}

// DecodeResult is the inverse of EncodeResult.
func DecodeResult(b []byte) (*Result, error) {
	s := &Result{}
	if err := decode(b, "", s); err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	return s, nil
}

// size returns about how many bytes a result takes.
func (s *Result) size() int {
	return 64 + 32*len(s.Produced) + 96*len(s.Settled) + 64*len(s.Moved) + 256*len(s.Leased)
}

// Answer is the leader's answer to one command that a node forwarded: Result, or one of the
// others.
type Answer struct {
	Result Result
	// Refusal, if set, replaces the result: the command was not executed, or it is not known
	// whether it was (Problem.Unknown).
	Refusal *Problem
	// Back: the command was not proposed and never will be by this leader; it can be sent to
	// the next one.
	Back bool
}

// EncodeAnswers returns the bytes of a group's answers, in the group's order. Unlike
// EncodeResult it leaves nothing out.
func EncodeAnswers(group []Answer) []byte {
	n := 64
	for i := range group {
		n += group[i].Result.size()
	}
	return appendEncoded(make([]byte, 0, n), (*answers)(&group))
}

// DecodeAnswers is the inverse of EncodeAnswers for a group of want answers.
func DecodeAnswers(b []byte, want int) ([]Answer, error) {
	var group answers
	if err := decode(b, "", &group); err != nil {
		return nil, fmt.Errorf("answers: %w", err)
	}
	if len(group) != want {
		return nil, fmt.Errorf("answers: %d for %d commands", len(group), want)
	}
	return group, nil
}
