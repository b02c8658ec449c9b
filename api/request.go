package api

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/trace"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
)

// request is one HTTP request and the state of its answer.
type request struct {
	*http.Request
	s        *Server
	w        http.ResponseWriter
	id       string // X-Request-Id
	route    string // pattern, for logs and metrics
	packed   bool   // body and answer may be MessagePack
	write    bool
	why      string        // the operator's reason
	who      *principal    // nil: there is no auth file, everything is allowed
	span     trace.Span    // nil: the request is not traced
	idle     bool          // a lease that has found nothing
	patience time.Duration // how long it waits for what it asks for
	caughtUp bool          // this node has caught up with what was committed before the request

	err      error        // of reading the request; see params.go
	status   int          // of the answer; 0: not answered yet
	hungUp   bool         // the client: the answer could not be written
	replayed bool         // the answer is the first one to this Idempotency-Key
	errors   []wire.Wrong // sent with a problem
	fate     wire.Fate    // sent with a problem

	raw     []byte        // the body; nil: not read yet
	pooled  *bytes.Buffer // has raw, and goes back to bodies after the answer
	query   url.Values
	values  []string  // of the answer's headers
	first   [8]string // of values
	media   string    // of the body, "" if not given
	charset string
}

// Media types of bodies.
const (
	typeJSON    = "application/json"
	typeMsgpack = wire.MediaMsgpack
)

// newRequest returns a request and sets the answer's common headers. s is nil before the node can
// serve.
func newRequest(s *Server, w http.ResponseWriter, r *http.Request, pattern string) *request {
	q := &request{Request: r, s: s, w: w, route: pattern, id: requestID(r)}
	q.write = r.Method != http.MethodGet && r.Method != http.MethodHead &&
		(strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/admin/"))
	q.header("X-Request-Id", q.id)
	q.header("X-Content-Type-Options", "nosniff")
	q.header("Cache-Control", "no-store")
	return q
}

// header sets a header of the answer, whose name is in canonical form. Unlike Header.Set it
// allocates nothing for the first few.
func (q *request) header(name, value string) {
	if q.values == nil {
		q.values = q.first[:0]
	}
	n := len(q.values)
	q.values = append(q.values, value)
	q.w.Header()[name] = q.values[n : n+1 : n+1]
}

// check rejects encodings and queries that no route accepts, and parses the media type and query.
func (q *request) check() error {
	enc := first(q.Header["Content-Encoding"])
	if enc != "" && !strings.EqualFold(enc, "identity") {
		return event.Problemf(codeUnsupportedMedia, "Content-Encoding",
			"Content-Encoding %s is not supported; send the body as it is", echo(enc))
	}
	switch ct := q.Header["Content-Type"]; {
	case len(ct) == 0 || ct[0] == "":
	case len(ct) == 1 && (ct[0] == typeJSON || ct[0] == typeMsgpack):
		q.media = ct[0]
	default:
		media, params, err := mime.ParseMediaType(ct[0])
		if err != nil || len(ct) > 1 || len(ct[0]) > 256 {
			if q.ContentLength == 0 {
				break // there is no body
			}
			return event.Problemf(codeUnsupportedMedia, "Content-Type",
				"Content-Type %s cannot be understood", echo(ct[0]))
		}
		q.media, q.charset = media, params["charset"]
	}
	if q.URL.RawQuery == "" {
		return nil
	}
	var err error
	if q.query, err = url.ParseQuery(q.URL.RawQuery); err != nil {
		return bad("query", "the query is not well-formed: %s", clip(err.Error(), 60))
	}
	return nil
}

// first returns the first element, the zero value of an empty list.
func first[T any](list []T) (v T) {
	if len(list) > 0 {
		v = list[0]
	}
	return v
}

// clearReadDeadline clears the read deadline of the body: net/http watches for a disconnect while the
// answer is computed, and would mistake the deadline for one.
func (q *request) clearReadDeadline() {
	_ = http.NewResponseController(q.w).SetReadDeadline(time.Time{})
}

var bodies = sync.Pool{New: func() any { return &bytes.Buffer{} }}

// maxPooled bounds the buffers that bodies keeps.
const maxPooled = 1 << 20

// release releases the body's memory.
func (q *request) release() {
	if q.pooled != nil {
		q.recycle(q.pooled)
	}
	q.raw, q.pooled = nil, nil
}

// room returns an empty buffer with about the body's capacity, valid as long as the body.
func (q *request) room() []byte {
	q.pooled.Grow(q.pooled.Len())
	return q.pooled.AvailableBuffer()
}

// recycle returns a buffer to bodies. Nothing may refer to its bytes any more; HTTP/2 does after a
// write to a client that has disconnected.
func (q *request) recycle(b *bytes.Buffer) {
	if b.Cap() <= maxPooled && !q.hungUp {
		b.Reset()
		bodies.Put(b)
	}
}

// bytes reads the body, of at most limit bytes.
func (q *request) bytes(limit int64) ([]byte, error) {
	if q.raw != nil {
		return q.raw, nil
	}
	tooLarge := func() error {
		return event.Problemf(event.CodePayloadTooLarge, "",
			"the body is larger than %d bytes", limit)
	}
	if q.ContentLength > limit {
		return nil, tooLarge()
	}
	b := &bytes.Buffer{}
	if q.packed { // nothing refers to the body of such a call after its answer
		b = bodies.Get().(*bytes.Buffer)
		q.pooled = b
	}
	body := q.Body
	if q.ContentLength < 0 {
		body = http.MaxBytesReader(q.w, body, limit)
	}
	// The buffer grows with what has arrived.
	b.Grow(int(min(max(0, q.ContentLength), 64<<10)) + bytes.MinRead)
	_, err := b.ReadFrom(body)
	_, tooMany := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		q.clearReadDeadline()
		q.raw = b.Bytes()
		return q.raw, nil
	case tooMany:
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, event.Problemf(codeRequestTimeout, "", "the body did not arrive within %s",
			bodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF) || q.Context().Err() != nil:
		return nil, event.Problemf(codeInvalidJSON, "", "the body ended early")
	}
	return nil, event.Problemf(codeInvalidJSON, "", "the body could not be read")
}

// decode decodes the body strictly into v: JSON or, if the route accepts it, MessagePack, or JSON
// with one of the media types in also. An empty body is rejected unless it is optional; then it may
// have any type.
func (q *request) decode(v any, optional bool, also ...string) error {
	packed := isMsgpack(q.media)
	ok := q.media == "" || q.media == typeJSON || q.packed && packed ||
		slices.Contains(also, q.media)
	ok = ok && (q.charset == "" || strings.EqualFold(q.charset, "utf-8"))
	if !ok && optional {
		b, err := q.bytes(q.s.opts.MaxRequest)
		if err != nil || len(b) == 0 {
			return err
		}
	}
	if !ok {
		want := typeJSON
		if q.packed {
			want += " or " + typeMsgpack
		}
		return event.Problemf(codeUnsupportedMedia, "Content-Type",
			"Content-Type must be %s: with curl, use --json in place of -d, or add "+
				"-H 'Content-Type: application/json'", want)
	}
	b, err := q.bytes(q.s.opts.MaxRequest)
	text := bytes.Trim(b, " \t\r\n")
	code, empty, null := codeInvalidJSON, len(text) == 0, string(text) == "null"
	if packed {
		code, empty, null = codeInvalidMsgpack, len(b) == 0, string(b) == "\xc0"
	}
	switch {
	case err != nil || empty && optional:
		return err
	case empty:
		return event.Problemf(code, "", "the body is empty")
	case null: // it would decode as a value without fields
		of := reflect.TypeOf(v).Elem()
		return decodeProblem(&json.SemanticError{GoType: of, JSONKind: 'n'}, code)
	case !packed:
		return decodeStrict(b, v, code)
	}
	limit := int(2 * q.s.opts.MaxRequest)
	err = transcode.Decode(b, v, limit)
	if errors.Is(err, transcode.ErrTooLarge) {
		return event.Problemf(event.CodePayloadTooLarge, "",
			"the body is larger than %d bytes as JSON", limit)
	}
	return decodeProblem(err, code)
}

// decodeStrict decodes JSON into v; code is that of a syntax error.
func decodeStrict(b []byte, v any, code string) error {
	if transcode.TooDeep(b, transcode.MaxDepth) {
		return event.Problemf(code, "", "the body is nested deeper than %d", transcode.MaxDepth)
	}
	return decodeProblem(wire.Decode(b, v), code)
}

// send writes an answer.
func (q *request) send(status int, media string, body []byte) {
	q.status = status
	q.header("Content-Type", media)
	q.header("Content-Length", strconv.Itoa(len(body)))
	q.w.WriteHeader(status)
	if q.Method != http.MethodHead {
		_, err := q.w.Write(body)
		q.hungUp = err != nil
	}
}

// answer writes v as JSON, or as MessagePack if the client asks for that; nil is no content. If
// reading the request failed, it returns that error.
func (q *request) answer(status int, v any) error {
	if q.err != nil {
		return q.err
	}
	if v == nil {
		q.status = status
		q.w.WriteHeader(status)
		return nil
	}
	buf := bodies.Get().(*bytes.Buffer)
	defer q.recycle(buf)
	media, err := typeJSON, error(nil)
	switch leases, ok := v.(*leaseAnswer); {
	case q.packed && q.accepts(msgpackTypes...) != "":
		media = typeMsgpack
		kept := slices.ContainsFunc(q.Header["Accept"], func(h string) bool {
			return strings.Contains(h, "payload=bin")
		})
		var b []byte
		b, err = transcode.Append(buf.AvailableBuffer(), v, kept)
		buf.Write(b)
	case ok:
		err = leases.write(buf)
	default:
		err = wire.Write(buf, v)
	}
	if err == nil {
		q.send(status, media, buf.Bytes())
	}
	return err
}

// createdOrOK returns the status of an answer that may have created something.
func createdOrOK(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// accepts returns the first media type of the Accept header that is in types and does not have the
// weight 0, "" for none.
func (q *request) accepts(types ...string) string {
	for _, h := range q.Header["Accept"] {
		for part := range strings.SplitSeq(h, ",") {
			media, params, _ := mime.ParseMediaType(part)
			weight, err := strconv.ParseFloat(params["q"], 64)
			if slices.Contains(types, media) && (err != nil || weight > 0) {
				return media
			}
		}
	}
	return ""
}
