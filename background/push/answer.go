package push

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
	"github.com/qlogd/qlogd/webhook"
)

const (
	maxRetryAfter = time.Hour
	maxResult     = 4 << 10 // of an answer that is kept
	maxToldAnswer = 256     // of an answer, in an error
)

// verdict is what becomes of a message after a delivery, and what the delivery
// says of the target.
type verdict struct {
	op      event.SettleOp // OpAck, OpRetry, OpDeadLetter, OpRelease
	delayMS int64          // OpRetry: -1 the policy's
	text    string         // why it failed; user's text, for the log alone
	told    string         // the same without anything that the target wrote
	result  []byte         // OpAck: JSON
	answer  []byte         // OpAck: JSON that the target answered; nil none

	works bool          // the target answers as one that does its work
	down  bool          // the failure is the target's, whatever the message
	hold  time.Duration // it wants to be left alone for so long
	// unreached: it surely has not got the request.
	unreached bool
	refused   bool // it never will be, as this node is set up
}

// judge says what an answer, or the lack of one, means. 2xx is done. 410 is
// never. What says something of this request (400, 409, 413, 415, 422 and other
// rarer ones) is tried again by the queue's policy and says nothing of the
// target. All else is tried again too, and is the target's failure: it can't be
// reached, breaks off, is too slow, is another one (redirects, 401, 403, 404,
// 405) or can't now.
func judge(a *webhook.Answer, err error, now time.Time) verdict {
	v := verdict{op: event.OpRetry, delayMS: -1}
	if err != nil {
		var refused *webhook.RefusedError
		v.unreached = webhook.Unsent(err)
		if errors.As(err, &refused) { // by this node's rules: no message of the queue can go there
			v.op, v.refused = event.OpRelease, true
			v.text = "target refused: " + err.Error()
		} else {
			v.text = err.Error()
		}
		v.text = clean(v.text, 512)
		v.told, v.down = v.text, true
		return v
	}
	v.told = strings.TrimSpace(fmt.Sprintf("status %d %s", a.Status, http.StatusText(a.Status)))
	if a.Status >= 200 && a.Status < 300 {
		v.op, v.works = event.OpAck, true
		v.answer = jsonOf(a)
		v.result = fmt.Appendf(nil, `{"status":%d}`, a.Status)
		if n := len(v.answer); n > 0 && n <= maxResult {
			v.result = append(fmt.Appendf(nil, `{"status":%d,"answer":`, a.Status), v.answer...)
			v.result = append(v.result, '}')
		}
		return v
	}
	v.text = v.told
	if len(a.Body) > 0 {
		v.text += ": " + clean(string(a.Body[:min(len(a.Body), maxToldAnswer)]), maxToldAnswer)
	}
	switch s := a.Status; {
	case s == http.StatusGone:
		v.op, v.works = event.OpDeadLetter, true
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable:
		v.down = true
		if v.hold = retryAfter(a.Header.Get("Retry-After"), now); v.hold > 0 {
			v.delayMS = v.hold.Milliseconds()
		}
	case s >= 500, s < 400, s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusNotFound, s == http.StatusMethodNotAllowed,
		s == http.StatusProxyAuthRequired, s == http.StatusRequestTimeout, s == http.StatusTooEarly, s == http.StatusMisdirectedRequest:
		v.down = true
		if s >= 300 && s < 400 {
			v.text = v.told + ": redirects are not followed"
			v.told = v.text
		}
	default:
		v.works = true
	}
	return v
}

// retryAfter reads the header of that name: seconds, or a date. 0 where there is
// none, or it has passed; at most an hour.
func retryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if n, err := strconv.ParseUint(v, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return min(at.Sub(now), maxRetryAfter)
	}
	return 0
}

// jsonOf returns an answer's body in a compact form if it is JSON, nil if not.
func jsonOf(a *webhook.Answer) []byte {
	if ct := a.Header.Get("Content-Type"); ct != "" {
		media, _, err := mime.ParseMediaType(ct)
		if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
			return nil
		}
	}
	if a.Cut || len(bytes.TrimSpace(a.Body)) == 0 {
		return nil
	}
	if transcode.TooDeep(a.Body, transcode.MaxDepth) {
		return nil // nor would a produce of it be taken
	}
	v := jsontext.Value(bytes.Clone(a.Body))
	if !v.IsValid() || v.Compact() != nil { // a name twice and bad UTF-8 are not valid
		return nil
	}
	return v
}

// clean makes a foreign text one line of UTF-8, of at most n bytes.
func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
	return clip(strings.Join(strings.Fields(s), " "), n)
}
