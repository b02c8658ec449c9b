package api

import (
	"bytes"
	"errors"
	"html"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"

	"github.com/qlogd/qlogd/internal/transcode"
)

const aULID = "01JABCDEFGHJKMNPQRSTVWXYZ0"

// table reads the lines of a file in testdata, of as many columns, with {{x*257}} as in scripts.
func table(t *testing.T, name string, columns int) (out [][]string) {
	text, err := os.ReadFile("testdata/" + name + ".txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		row := make([]string, columns)
		copy(row, strings.Split(line, " | "))
		for i, v := range row {
			row[i] = repeat(v)
			if quoted, err := strconv.Unquote(v); err == nil {
				row[i] = quoted
			}
		}
		out = append(out, row)
	}
	return out
}

// TestBadInput: each malformed request is answered as a problem, and none reaches the Proposer.
func TestBadInput(t *testing.T) {
	h := setup(t, func(o *Options) { o.MaxPayload = 64 << 10 })
	h.do("PUT", "/v1/queues/q", "").want(201)
	for _, c := range table(t, "bad", 5) {
		t.Run(c[0], func(t *testing.T) {
			h := *h
			h.T = t
			h.refused(c[1], c[2], c[3], c[4])
		})
	}
}

// refused sends a request that is wrong, with headers that " ; " separates; want is the problem's
// status, code, field and index.
func (h *harness) refused(want, call, header, body string) {
	h.Helper()
	before := h.proposals()
	method, target, _ := strings.Cut(call, " ")
	w := append(strings.Fields(want), "", "")
	status, _ := strconv.Atoi(w[0])
	var headers []string
	if header != "" {
		headers = strings.Split(header, " ; ")
	}
	a := h.do(method, target, body, headers...).want(status)
	assert.Equal(h, h.proposals()-before+h.cluster.asked(), 0,
		"commands or changes of the cluster were proposed")
	var p wire.Problem
	require.NoError(h, wire.Decode(a.Body.Bytes(), &p), "%s", a.Body)
	index := ""
	if p.Index != nil {
		index = strconv.Itoa(*p.Index)
	}
	if p.Code != w[1] || w[2] != "" && p.Field != w[2] || index != w[3] || p.Status != status ||
		p.Title == "" || p.Detail == "" {
		h.Errorf("want %s: %s", want, a.Body)
	}
	event := p.Code == event.CodeInvalidArgument && strings.Contains(header, "cloudevents")
	assert.True(h, !event || strings.Contains(p.Detail, p.Field), "does not name it: %s", p.Detail)
	if applied := map[bool]string{false: "not_applied"}; p.Outcome != applied[method == "GET"] {
		h.Errorf("outcome %q: %s", p.Outcome, a.Body)
	}
	assert.Equal(h, a.Header().Get("Content-Type"), "application/problem+json")
	assert.True(h, len(a.Header().Get("X-Request-Id")) >= 16, "%v", a.Header())
	assert.True(h, a.Body.Len() <= 1500, "%d bytes of answer", a.Body.Len())
}

// TestBodyMustBeAnObject: every call whose body is an object refuses other JSON, and changes nothing.
func TestBodyMustBeAnObject(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", `{"description":"kept"}`).want(201)
	for pattern := range h.s.rules {
		method, path, _ := strings.Cut(pattern, " ")
		if method == "GET" || path == "" || strings.HasPrefix(path, "/hook/") {
			continue
		}
		path = strings.NewReplacer("{queue}", "q", "{id}", aULID, "{message_id}", aULID,
			"{lease_id}", aULID, "{name}", "w").Replace(path)
		for _, body := range []string{"null", " null\n", "[]", "[{}]", "3", "true", `"{}"`} {
			before := h.proposals()
			a := h.do(method, path, body)
			assert.Equal(t, h.proposals()-before, 0, "%s %s proposed", path, body)
			if a.Code != 404 { // what the path names is looked up first
				a.refused(event.CodeInvalidArgument, "")
				assert.True(t, strings.Contains(a.str("detail"), "the body must be an object, not"),
					"%s %s: %s", path, body, a.Body)
			}
		}
	}
	packed := h.do("POST", "/v1/queues/q/messages", "\xc0", "Content-Type: application/msgpack")
	packed.refused(event.CodeInvalidArgument, "")
	assert.Equal(t, packed.str("detail"), "the body must be an object, not null")
	h.do("GET", "/v1/queues/q", "").want(200).with("description", "kept")
}

func TestFailuresTellNothing(t *testing.T) {
	h := setup(t)
	fails := func(code string) {
		a := h.do("PUT", "/v1/queues/q", "").want(500)
		text := a.refused(code, "").with("outcome", "unknown").Body.String()
		assert.True(t, !strings.Contains(text, "secret") && !strings.Contains(text, ".go"),
			"%s", text)
	}
	h.fake.err = errors.New("secret")
	fails("internal")
	h.fake.before = func() { panic("secret") }
	fails("internal")
}

// TestDeepBodyIsFlat shows that a bomb of brackets is refused before it is
// decoded.
func TestDeepBodyIsFlat(t *testing.T) {
	body := bytes.Repeat([]byte("["), 2<<20)
	deep := false
	n := testing.AllocsPerRun(1, func() { deep = transcode.TooDeep(body, transcode.MaxDepth) })
	assert.Equal(t, n, 0, "allocations")
	require.True(t, deep, "not too deep")
	h := setup(t)
	r := httptest.NewRequest("POST", "/v1/queues/q/messages", bytes.NewReader(body))
	h.send(r).want(400)
	ok := strings.Repeat(`[`, 61) + strings.Repeat(`]`, 61)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":`+ok+`}]}`).want(201)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":[`+ok+`]}]}`).want(400)
}

// TestProblemPages: a problem's type is a page of the node that explains it.
func TestProblemPages(t *testing.T) {
	h := setup(t)
	a := h.do("GET", "/v1/queues/none", "").want(404)
	assert.Equal(t, a.str("type"), "/problems/queue_not_found", "%s", a.Body)
	for code, st := range statuses() {
		a := h.do("GET", "/problems/"+code, "").want(200)
		if !strings.Contains(a.Body.String(), html.EscapeString(st.Title)) || st.Advice == "" {
			t.Errorf("%s: %s", code, a.Body)
		}
	}
	h.do("GET", "/problems/none", "").want(404)
}
