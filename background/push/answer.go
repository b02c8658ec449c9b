package push

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
	"github.com/qlogd/qlogd/webhook"
)

const (
	maxRetryAfter = time.Hour
	maxResult     = 4 << 10 // of an answer that is kept
	maxErrorBody  = 256     // of an answer, in an error
)

// verdict is the outcome of a delivery for the message, and for the target's health.
type verdict struct {
	op      event.SettleOp // OpAck, OpRetry, OpDeadLetter, OpRelease
	delayMS int64          // OpRetry: -1 the policy's
	text    string         // why it failed; it may quote the target, so it is for the log alone
	safe    string         // the same without anything that the target wrote
	result  []byte         // OpAck: JSON
	answer  []byte         // OpAck: the target's JSON; nil none

	works     bool          // the target is healthy
	down      bool          // the failure is the target's, whatever the message
	hold      time.Duration // the target asks for a pause of this length
	unreached bool          // it has certainly not received the request
	refused   bool          // this node's configuration does not allow the target
}

// judge returns the verdict on an answer, or on its absence. 2xx acks, 410 dead-letters. A status
// about this request (400, 409, 413, 415, 422 and rarer ones) is retried by the queue's policy and
// says nothing about the target. Everything else is retried too, and is the target's failure: it
// can't be reached, breaks off, is too slow, is another one (redirects, 401, 403, 404, 405) or is
// overloaded.
func judge(a *webhook.Answer, err error, now time.Time) verdict {
	v := retry("")
	if err != nil {
		text := err.Error()
		if _, v.refused = errors.AsType[*webhook.RefusedError](err); v.refused {
			v.op, text = event.OpRelease, "target refused: "+text // no message can go there
		}
		v.text = event.Line(text, 512)
		v.safe, v.down, v.unreached = v.text, true, webhook.Unsent(err)
		return v
	}
	v.safe = strings.TrimSpace(fmt.Sprintf("status %d %s", a.Status, http.StatusText(a.Status)))
	if a.Status >= 200 && a.Status < 300 {
		v.op, v.works = event.OpAck, true
		v.answer = jsonOf(a)
		v.result = fmt.Appendf(nil, `{"status":%d}`, a.Status)
		if n := len(v.answer); n > 0 && n <= maxResult {
			v.result = fmt.Appendf(nil, `{"status":%d,"answer":%s}`, a.Status, v.answer)
		}
		return v
	}
	v.text = v.safe
	if len(a.Body) > 0 {
		v.text += ": " + event.Line(string(a.Body[:min(len(a.Body), maxErrorBody)]), maxErrorBody)
	}
	switch s := a.Status; {
	case s == http.StatusGone:
		v.op, v.works = event.OpDeadLetter, true
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable:
		v.down = true
		if v.hold = parseRetryAfter(a.Header.Get("Retry-After"), now); v.hold > 0 {
			v.delayMS = v.hold.Milliseconds()
		}
	case s >= 300 && s < 400:
		v.safe += ": redirects are not followed"
		v.text, v.down = v.safe, true
	case s >= 500, s < 300, slices.Contains(targetFailures, s):
		v.down = true
	default:
		v.works = true
	}
	return v
}

// targetFailures are those statuses from 400 to 499 that are about the target, not this request.
var targetFailures = []int{
	http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
	http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusTooEarly,
	http.StatusMisdirectedRequest,
}

// parseRetryAfter reads the header Retry-After: seconds, or a date. It returns 0 without it or if
// it has passed, and at most an hour.
func parseRetryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if n, err := strconv.ParseUint(v, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return min(at.Sub(now), maxRetryAfter)
	}
	return 0
}

// jsonOf returns an answer's body in a compact form if it is JSON, else nil.
func jsonOf(a *webhook.Answer) []byte {
	if ct := a.Header.Get("Content-Type"); ct != "" {
		media, _, err := mime.ParseMediaType(ct)
		if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
			return nil
		}
	}
	// A produce of what is nested deeper would be refused as well.
	if a.Cut || transcode.TooDeep(a.Body, transcode.MaxDepth) {
		return nil
	}
	v := jsontext.Value(bytes.Clone(a.Body))
	if !v.IsValid() || v.Compact() != nil { // a name twice and bad UTF-8 are not valid
		return nil
	}
	return v
}
