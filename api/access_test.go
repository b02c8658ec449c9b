package api

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// who are the tokens of the tests: "ROLE PATTERN", and those that are nobody's.
type tokens map[string]string

// withAuth is setup with an auth file of these roles and patterns.
func withAuth(t *testing.T, who ...string) (*harness, tokens, *Auth, string) {
	t.Helper()
	tokens, auth, file := authFile(t, who...)
	return setup(t, func(o *Options) { o.Auth = auth }), tokens, auth, file
}

func authFile(t *testing.T, who ...string) (tokens, *Auth, string) {
	t.Helper()
	var text strings.Builder
	out := tokens{"none": "", "unknown": "qlogd_unknown"}
	add := func(name, role, pattern, more string) {
		token, sum := newToken(t)
		out[name] = token
		plain := strings.NewReplacer(" ", ".", "*", "s", "[", "", "]", "", "?", "", ",", "")
		fmt.Fprintf(&text, "- name: %s\n  sha256: %s\n  roles: [%s]\n%s", plain.Replace(name), sum,
			role, more)
		if pattern != "" {
			fmt.Fprintf(&text, "  queues: ['%s']\n", pattern)
		}
	}
	for _, w := range who {
		role, pattern, _ := strings.Cut(w, " ")
		add(w, role, pattern, "")
	}
	add("expired", "admin", "", "  expires: 1999-01-01T00:00:00Z\n")
	add("later", "admin", "", "  expires: 2120-01-01T00:00:00Z\n")
	file := filepath.Join(t.TempDir(), "auth.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
	a, err := LoadAuth(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return out, a, file
}

// as sends a request with a token.
func (h *harness) as(token, method, target, body string, headers ...string) answer {
	h.Helper()
	if token != "" {
		headers = append(headers, "Authorization: Bearer "+token)
	}
	return h.do(method, target, body, headers...)
}

// routeCall is a request for a route, and what a token needs for it.
type routeCall struct{ needs, route, target, body string }

// unknownID is of a message that there never was.
const unknownID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

func routeCalls(t *testing.T) (out []routeCall) {
	for _, c := range table(t, "routes", 4) {
		out = append(out, routeCall{c[0], c[1], c[2], c[3]})
	}
	return out
}

// TestEveryRouteHasARule fails where somebody adds a route and says not who may
// call it, or here what it needs.
func TestEveryRouteHasARule(t *testing.T) {
	h := setup(t)
	assert.True(t, len(h.s.rules) >= 30, "%d routes", len(h.s.rules))
	calls := routeCalls(t)
	for pattern, rule := range h.s.rules {
		if rule.on == nobody || rule.role == 0 && rule.on != open && rule.on != authenticated {
			t.Errorf("%s has no rule", pattern)
		}
		if !slices.ContainsFunc(calls, func(c routeCall) bool { return c.route == pattern }) {
			t.Errorf("%s is not in the table of what routes need", pattern)
		}
	}
	for _, c := range calls {
		if _, ok := h.s.rules[c.route]; !ok {
			t.Errorf("%s is no route", c.route)
		}
	}
}

// TestAccess holds every route against every role and pattern.
func TestAccess(t *testing.T) { synctest.Test(t, everyAccess) }

func everyAccess(t *testing.T) {
	roles := []string{"produce", "consume", "read"}
	who := []string{"admin"}
	for _, r := range roles {
		who = append(who, r+" a.*", r+" z.*", r+" *")
	}
	h, tokens, _, _ := withAuth(t, who...)
	may := func(name, needs string) bool {
		role, pattern, _ := strings.Cut(name, " ")
		switch {
		case needs == "open":
			return true
		case role == "none" || role == "unknown" || role == "expired":
			return false
		case role == "admin" || role == "later" || needs == "known":
			return true
		case strings.HasPrefix(needs, "any "):
			return role == needs[4:]
		case strings.HasSuffix(needs, "!"):
			return role == needs[:len(needs)-1] && pattern == "*"
		}
		return role == needs && pattern != "z.*"
	}
	var fill *strings.Replacer
	for _, c := range routeCalls(t) {
		for _, name := range slices.Sorted(maps.Keys(tokens)) {
			if h.proposals() != 3 { // none yet, or the call before has changed something
				h.forget()
				admin := tokens["admin"]
				h.as(admin, "PUT", "/v1/queues/a.1", "").want(201)
				h.as(admin, "POST", "/v1/queues/a.1/messages", oneMessage).want(201)
				l := h.as(admin, "POST", "/v1/queues/a.1/lease", "").want(200)
				fill = strings.NewReplacer("{L}", l.str("messages.0.lease_id"),
					"{M}", l.str("messages.0.id"), "{Q}", unknownID)
			}
			method := "GET"
			if m, _, ok := strings.Cut(c.route, " "); ok {
				method = m
			}
			before, asked := h.proposals(), h.cluster.asked()
			a := h.as(tokens[name], method, fill.Replace(c.target), fill.Replace(c.body))
			what := fmt.Sprintf("%s %s as %q: %d %.200s", method, c.target, name, a.Code, a.Body)
			switch refused := a.Code == 401 || a.Code == 403; {
			case refused == may(name, c.needs):
				t.Errorf("%s; it needs %s", what, c.needs)
			case refused:
				stranger := tokens[name] == "" || name == "unknown" || name == "expired"
				asks := a.Header().Get("WWW-Authenticate") != ""
				assert.True(t, stranger == (a.Code == 401) && asks == stranger,
					"%s %v", what, a.Header())
				assert.True(t, h.proposals() == before && h.cluster.asked() == asked,
					"%s; and yet it was proposed", what)
				assert.False(t, strings.Contains(a.Body.String(), "qlogd_"),
					"%s tells the token", what)
			case c.needs != "open" && c.route != "/" && a.Code >= 400 && a.Code != 404:
				t.Errorf("%s", what)
			}
		}
	}
}

// A stream shows only what the token may read, and ends when it is taken back.
func TestStreamLosesItsToken(t *testing.T) { synctest.Test(t, streamLosesItsToken) }

func streamLosesItsToken(t *testing.T) {
	h, tok, auth, file := withAuth(t, "admin", "read a.*")
	for _, q := range []string{"a.1", "b"} {
		h.as(tok["admin"], "PUT", "/v1/queues/"+q, "").want(201)
	}
	follow := h.open(t.Context(), "/v1/events?follow=true", "Accept: application/x-ndjson",
		"Authorization: Bearer "+tok["read a.*"])
	h.as(tok["admin"], "POST", "/v1/queues/b/messages", oneMessage).want(201)
	h.as(tok["admin"], "POST", "/v1/queues/a.1/messages", oneMessage).want(201)
	assert.Contains(t, follow.line(), `"queue":"a.1"`)
	synctest.Wait() // until the stream waits for more
	revoke(t, auth, file, "roles: [read]", "roles: [produce]")
	h.as(tok["admin"], "POST", "/v1/queues/a.1/messages", oneMessage).want(201)
	<-follow.done
}

// revoke changes the auth file and reads it again.
func revoke(t *testing.T, a *Auth, file, from, to string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.ReplaceAll(string(text), from, to)), 0o600)
	}
	if err = cmp.Or(err, a.Reload()); err != nil {
		t.Fatal(err)
	}
}

// A lease that waits is not given to a token that was taken back meanwhile.
func TestWaitingLeaseLosesItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, tok, auth, file := withAuth(t, "admin", "consume a.*")
		h.as(tok["admin"], "PUT", "/v1/queues/a.1", "").want(201)
		answers := make(chan answer, 1)
		go func() {
			answers <- h.as(tok["consume a.*"], "POST", "/v1/queues/a.1/lease", `{"wait_ms":60000}`)
		}()
		synctest.Wait()
		revoke(t, auth, file, "[consume]", "[read]")
		h.as(tok["admin"], "POST", "/v1/queues/a.1/messages", oneMessage).want(201)
		(<-answers).want(403)
		h.as(tok["admin"], "POST", "/v1/queues/a.1/lease", "").want(200).
			with("messages.0.attempt", 1.0)
		h.s.Drain()
	})
}

func TestOpenMetrics(t *testing.T) {
	_, auth, _ := authFile(t)
	open := setup(t, func(o *Options) { o.Auth, o.OpenMetrics = auth, true })
	open.do("GET", "/metrics", "").want(200)
}
