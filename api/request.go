package api

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
)

// request is one HTTP request and the state of its answer.
type request struct {
	*http.Request
	s     *Server
	w     http.ResponseWriter
	id    string // X-Request-Id
	route string // pattern, for logs and metrics
	path  string
	write bool
	who   *principal // nil: there is no auth file, everybody may do everything

	status   int          // of the answer; 0: not answered yet
	replayed bool         // the answer is the first one to this Idempotency-Key
	errors   []wire.Wrong // sent with a problem

	body   []byte // nil: not read yet
	query  url.Values
	media  string // of the body, "" if not given
	params map[string]string
}

// Media types of bodies.
const (
	typeJSON    = "application/json"
	typeMsgpack = "application/msgpack"
)

// newRequest begins a request and its answer's headers. s is nil before the node can
// serve.
func newRequest(s *Server, w http.ResponseWriter, r *http.Request, pattern string) *request {
	_, path, _ := strings.Cut(pattern, " ")
	q := &request{Request: r, s: s, w: w, route: pattern, path: path, id: requestID(r)}
	q.write = r.Method != http.MethodGet && r.Method != http.MethodHead &&
		(strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/admin/"))
	w.Header().Set("X-Request-Id", q.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	return q
}

// check refuses what no route takes.
func (q *request) check() error {
	if enc := first(q.Header["Content-Encoding"]); enc != "" && !strings.EqualFold(enc, "identity") {
		return event.Problemf(codeUnsupportedMedia, "Content-Encoding", "Content-Encoding %s is not taken; send the body as it is", echo(enc))
	}
	if ct := q.Header["Content-Type"]; len(ct) > 0 && ct[0] != "" {
		media, params, err := mime.ParseMediaType(ct[0])
		if err != nil || len(ct) > 1 || len(ct[0]) > 256 {
			return event.Problemf(codeUnsupportedMedia, "Content-Type", "Content-Type %s cannot be understood", echo(ct[0]))
		}
		q.media, q.params = media, params
	}
	var err error
	if q.query, err = url.ParseQuery(q.URL.RawQuery); err != nil {
		return bad("query", "the query is not well-formed: %s", clip(err.Error(), 60))
	}
	return nil
}

func first(v []string) string {
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

// allow refuses query parameters that the route does not know, and ones that come
// twice. A name that ends in a dot allows all names that begin with it.
func (q *request) allow(names ...string) error {
next:
	for name, values := range q.query {
		for _, n := range names {
			if n == name || strings.HasSuffix(n, ".") && strings.HasPrefix(name, n) && len(name) > len(n) {
				if len(values) > 1 {
					return bad(name, "query parameter %s was given %d times", echo(name), len(values))
				}
				continue next
			}
		}
		return bad(clip(name, 60), "unknown query parameter %s", echo(name))
	}
	return nil
}

// number reads a query parameter that is a whole number.
func (q *request) number(name string, def, lo, hi int64) (int64, error) {
	v, ok := q.query[name]
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(v[0], 10, 64)
	if err != nil || n < lo || n > hi {
		return 0, bad(name, "%s must be a whole number from %d to %d", name, lo, hi)
	}
	return n, nil
}

// flag reads a query parameter that is true or false.
func (q *request) flag(name string) (bool, error) {
	switch v := q.query.Get(name); {
	case v == "true":
		return true, nil
	case v == "false" || v == "" && !q.query.Has(name):
		return false, nil
	default:
		return false, bad(name, "%s must be true or false", name)
	}
}

// stale reads the consistency that is asked for.
func (q *request) stale() (bool, error) {
	switch v := q.query.Get("consistency"); {
	case v == "stale":
		return true, nil
	case v == "linearizable" || v == "" && !q.query.Has("consistency"):
		return false, nil
	default:
		return false, bad("consistency", "consistency must be linearizable or stale")
	}
}

// fresh waits until a read is linearizable, unless consistency=stale; then it
// reports the age of the answer.
func (q *request) fresh() error {
	stale, err := q.stale()
	if err != nil {
		return err
	}
	if !stale {
		if err := q.s.barrier(q.Context()); err != nil {
			return err
		}
	} else {
		q.tellAge()
	}
	q.tellIndex()
	return nil
}

// tellIndex sets X-Qlogd-Applied-Index: the answer shows all entries up to there. It
// must be called before the state is read, which may then show more, never less.
func (q *request) tellIndex() {
	q.w.Header().Set("X-Qlogd-Applied-Index", strconv.FormatUint(q.s.deps.State.Index(), 10))
}

// tellAge sets X-Qlogd-Age-Ms: by how much the answer may be behind.
func (q *request) tellAge() {
	age := "unknown"
	if d, ok := q.s.deps.Node.Age(); ok {
		age = strconv.FormatInt(max(d, 0).Milliseconds(), 10)
	}
	q.w.Header().Set("X-Qlogd-Age-Ms", age)
}

// queue returns the queue that the path names.
func (q *request) queue() (string, error) {
	name := q.PathValue("queue")
	if !event.ValidName(name) {
		return "", bad("queue", "queue must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; it was %s", echo(name))
	}
	return name, nil
}

// ulid reads an id.
func ulid(field, s string) (event.ID, error) {
	id, err := event.ParseID(s)
	if err != nil {
		return id, bad(field, "%s must be a ULID, 26 characters; it was %s", field, echo(s))
	}
	return id, nil
}

// unhurried clears the deadline of the body: net/http watches for the client hanging
// up while the answer is computed, and would mistake the deadline for that.
func (q *request) unhurried() { _ = http.NewResponseController(q.w).SetReadDeadline(time.Time{}) }

// bytes reads the body, of at most limit bytes.
func (q *request) bytes(limit int64) ([]byte, error) {
	if q.body != nil {
		return q.body, nil
	}
	tooLarge := func() error {
		return event.Problemf(codePayloadTooLarge, "", "the body is larger than %d bytes", limit)
	}
	if q.ContentLength > limit {
		return nil, tooLarge()
	}
	b := &bytes.Buffer{}
	if q.ContentLength > 0 {
		b.Grow(int(min(q.ContentLength, 64<<10)) + bytes.MinRead) // no memory for what has not come yet
	}
	_, err := b.ReadFrom(http.MaxBytesReader(q.w, q.Body, limit))
	var max *http.MaxBytesError
	switch {
	case err == nil:
		q.unhurried()
		q.body = b.Bytes()
		return q.body, nil
	case errors.As(err, &max):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, event.Problemf(codeRequestTimeout, "", "the body did not arrive within %s", q.s.opts.BodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF) || q.Context().Err() != nil:
		return nil, event.Problemf(codeInvalidJSON, "", "the body ended early")
	}
	return nil, event.Problemf(codeInvalidJSON, "", "the body could not be read")
}

// text reads a body that is JSON or, where the route takes it, msgpack. An empty
// one is nil.
func (q *request) text(msgpack bool, also ...string) ([]byte, error) {
	ok := q.media == "" || q.media == typeJSON || msgpack && isMsgpack(q.media)
	for _, m := range also {
		ok = ok || q.media == m
	}
	if cs := q.params["charset"]; !ok || cs != "" && !strings.EqualFold(cs, "utf-8") {
		want := typeJSON
		if msgpack {
			want += " or " + typeMsgpack
		}
		return nil, event.Problemf(codeUnsupportedMedia, "Content-Type", "Content-Type must be %s", want)
	}
	b, err := q.bytes(q.s.opts.MaxRequest)
	if err != nil {
		return nil, err
	}
	if !isMsgpack(q.media) && len(bytes.Trim(b, " \t\r\n")) == 0 {
		return nil, nil
	}
	return b, nil
}

// decode reads the body into v, strictly. An empty body is left to the zero
// value where optional, else refused.
func (q *request) decode(v any, msgpack, optional bool, also ...string) error {
	b, err := q.text(msgpack, also...)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		if optional {
			return nil
		}
		return event.Problemf(q.syntaxCode(), "", "the body is empty")
	}
	if isMsgpack(q.media) {
		return q.unpack(b, v)
	}
	if transcode.TooDeep(b, transcode.MaxDepth) {
		return event.Problemf(q.syntaxCode(), "", "the body is nested deeper than %d", transcode.MaxDepth)
	}
	return decodeProblem(wire.Decode(b, v), q.syntaxCode())
}

func (q *request) syntaxCode() string {
	if isMsgpack(q.media) {
		return codeInvalidMsgpack
	}
	return codeInvalidJSON
}

// send writes an answer.
func (q *request) send(status int, media string, body []byte) {
	q.status = status
	q.w.Header().Set("Content-Type", media)
	q.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	q.w.WriteHeader(status)
	if q.Method != http.MethodHead {
		_, _ = q.w.Write(body) // an error: the client has hung up
	}
}

// answer writes v as JSON, or as MessagePack where the client asks for that.
func (q *request) answer(status int, v any) error {
	b, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	return q.answerJSON(status, b)
}

// answerJSON is answer for a value that is JSON already.
func (q *request) answerJSON(status int, b []byte) (err error) {
	media := typeJSON
	if q.wantsMsgpack() {
		media = typeMsgpack
		if b, err = transcode.FromJSON(b); err != nil {
			return err
		}
	}
	q.send(status, media, b)
	return nil
}

// accepts reports whether the Accept header names a media type.
func (q *request) accepts(is func(string) bool) bool {
	for _, h := range q.Header["Accept"] {
		for part := range strings.SplitSeq(h, ",") {
			media, _, _ := strings.Cut(part, ";")
			if is(strings.ToLower(strings.TrimSpace(media))) {
				return true
			}
		}
	}
	return false
}
