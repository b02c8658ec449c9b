package console

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// over returns a console over an API that answers so.
func over(t *testing.T, api http.HandlerFunc) *Console {
	t.Helper()
	c, err := New(Options{API: api, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refuse(w http.ResponseWriter, p wire.Problem) {
	b, _ := wire.Marshal(&p)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(b)
}

// While nobody knows whether a form was carried out, its page says so, and sends the same again.
func TestUnknownOutcome(t *testing.T) {
	var keys []string
	c := over(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			b, _ := wire.Marshal(&wire.Queue{Name: "jobs"})
			_, _ = w.Write(b)
			return
		}
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) == 1 {
			refuse(w, wire.Problem{Status: 503, Code: "no_leader", Outcome: wire.Unknown,
				Detail: "the cluster did not answer in time"})
			return
		}
		_, _ = w.Write([]byte(`{"messages":[{"id":"01JD8K2V3M4N5P6Q7R8S9T0VWX"}]}`))
	})
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/ui/queues/jobs/produce", nil))
	cookie := w.Result().Cookies()[0]
	send := func(page string) *httptest.ResponseRecorder {
		form := url.Values{"payload": {"1"}, "format": {"json"}}
		for _, m := range regexp.MustCompile(`type="hidden" name="(\w+)" value="([^"]*)"`).
			FindAllStringSubmatch(page, -1) {
			form.Set(m[1], m[2])
		}
		r := httptest.NewRequest("POST", "/ui/queues/jobs/produce", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.AddCookie(cookie)
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		return w
	}
	w = send(w.Body.String())
	if w.Code != 503 || !strings.Contains(w.Body.String(), "It is not known whether this was done") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w = send(w.Body.String()); w.Code != 303 || len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("%d with the keys %q", w.Code, keys)
	}
}

// A handler that fails answers with a page and the id under which the log has the cause; what the
// API refuses is shown in its words.
func TestFailures(t *testing.T) {
	c := over(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, wire.Problem{Status: 429, Code: "overloaded", Title: "The server is overloaded",
			Detail: "32 reads of the past wait for states that are being folded", RetryAfterMS: 1500})
	})
	w := httptest.NewRecorder()
	broken := c.open(func(*page) error { panic("broken") })
	broken.ServeHTTP(withID(w, httptest.NewRequest("GET", "/ui/x", nil)))
	id := w.Header().Get("X-Request-Id")
	if body := w.Body.String(); w.Code != 500 || !strings.Contains(body, "Something went wrong") ||
		!strings.Contains(body, id) || strings.Contains(body, "broken") {
		t.Errorf("%d %s", w.Code, body)
	}
	w = httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/ui/?at=15m", nil))
	if w.Code != 429 || w.Header().Get("Retry-After") != "2" ||
		!strings.Contains(w.Body.String(), "32 reads of the past") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// A shell reads back what was quoted, and nothing in a command is hidden.
func TestQuote(t *testing.T) {
	for _, word := range []string{"", "plain-word.1", "it's", `a"b\c`, "$HOME `id` $(id)", "two\nlines",
		"a\u202eb", "\x1b[31m100% 'x' \\n", "ünï\u2066"} {
		quoted := quote(word)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quoted).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q is read as %q from %s: %v", word, out, quoted, err)
		}
		if strings.ContainsFunc(quoted, hidden) {
			t.Errorf("%q has hidden characters", quoted)
		}
	}
}

// A duration before now is the time that it was, so that a link stays there.
func TestPastOf(t *testing.T) {
	now := time.Date(2026, 7, 15, 12, 0, 0, 0, time.UTC)
	for at, want := range map[string]string{
		"now": "", "": "", "15m": "2026-07-15T11:45:00", "7d": "2026-07-08T12:00:00",
		"2w": "2026-07-01T12:00:00", "start": "start", "index:3": "index:3", "-1h": "-1h",
	} {
		if got := pastOf(at, now); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s is %s, not %s", at, got, want)
		}
	}
}
