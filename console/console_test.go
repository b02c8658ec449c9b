package console_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/verify"
)

func TestMain(m *testing.M) {
	cluster.Verify = verify.Dir
	cluster.Main(m)
}

// test is one of those that share a node, one after the other, each with its own browser. What one
// leaves behind but for queues, such as tasks and the log, the next ones see.
type test struct {
	name string
	run  func(*testing.T, *browser)
}

// Everybody may do everything.
func TestOpen(t *testing.T) {
	t.Parallel()
	open(t).share(t, []test{
		{"peek", testPeek}, {"much attention", testMuchAttention}, // first: they count
		{"overview", testOverview}, {"pages", testPages}, {"hostile content", testHostileContent},
		{"queue in the past", testQueueInThePast}, {"commands of forms", testCommandsOfForms},
		{"message polls", testMessagePolls}, {"no message", testNoMessage},
		{"payloads", testPayloads}, {"long life", testLongLife},
		{"leased message", testLeasedMessage}, {"many dead", testManyDead},
		{"webhook", testWebhook}, {"difference", testDifference},
		{"links in a dialog", testLinksInDialog}, {"request ids", testRequestIDs},
	})
}

// People sign in, and may do what their tokens may.
func TestSignedIn(t *testing.T) {
	t.Parallel()
	open(t, "root admin", "ann read jobs*", "bob read other*", "pat produce *").share(t, []test{
		{"attention", testAttention}, // first: the others leave dead letters
		{"task", testTask},           // first with one
		{"sent twice", testSentTwice}, {"queue actions", testQueueActions},
		{"dead letters", testDeadLetters}, {"replay", testReplay},
		{"replay task and purge", testReplayTaskAndPurge}, {"undo", testUndo},
		{"message life", testMessageLife}, {"message actions", testMessageActions},
		{"message roles", testMessageRoles},
	})
}

// share runs tests on a node.
func (b *browser) share(t *testing.T, tests []test) {
	sessions := map[string][]*http.Cookie{}
	for _, one := range tests {
		t.Run(one.name, func(t *testing.T) {
			next := &browser{T: t, node: b.node, api: b.api, sessions: sessions}
			next.fresh()
			defer next.deleteQueues()
			one.run(t, next)
		})
	}
}

func (b *browser) deleteQueues() {
	queues, err := b.api.Queues(b.Context(), "")
	require.NoError(b, err)
	for _, q := range queues {
		require.NoError(b, b.api.DeleteQueue(b.Context(), q.Name, true))
	}
}

// browser is a person at the console of a real node.
type browser struct {
	*testing.T
	node *cluster.Node
	http *http.Client
	api  *client.Client // of an admin
	// sessions are those of people who have signed in before, since that is limited; nil: none.
	sessions map[string][]*http.Cookie
}

// token returns the token of a test's principal. It must not be known to anybody else.
func token(name string) string { return "qlogd_test_" + name }

// open starts a node, with an auth file if there are any principals: "NAME ROLE [QUEUES]", the
// first of them an admin.
func open(t *testing.T, who ...string) *browser {
	t.Helper()
	return openWith(t, nil, who...)
}

func openWith(t *testing.T, flags []string, who ...string) *browser {
	t.Helper()
	o := cluster.Options{Flags: flags}
	if len(who) > 0 {
		o.Flags = append(o.Flags, "--auth-file", authFile(t, who...))
		o.Token = token(strings.Fields(who[0])[0])
	}
	return browse(t, cluster.Start(t, o), o.Token)
}

// authFile writes one.
func authFile(t *testing.T, who ...string) string {
	t.Helper()
	var text strings.Builder
	for _, w := range who {
		f := strings.Fields(w)
		sum := sha256.Sum256([]byte(token(f[0])))
		fmt.Fprintf(&text, "- name: %s\n  sha256: %s\n  roles: [%s]\n", f[0],
			hex.EncodeToString(sum[:]), f[1])
		if len(f) > 2 {
			fmt.Fprintf(&text, "  queues: ['%s']\n", f[2])
		}
	}
	return write(t, text.String())
}

// write returns a file that only its owner may read.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// browse returns a browser that has not signed in, and the token of an admin, "" where none is
// needed.
func browse(t *testing.T, n *cluster.Node, admin string) *browser {
	t.Helper()
	b := &browser{T: t, node: n, api: n.Client(client.WithToken(admin))}
	b.fresh()
	return b
}

// fresh is a browser without cookies.
func (b *browser) fresh() {
	jar, _ := cookiejar.New(nil)
	b.http = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// answer is a response and its body.
type answer struct {
	*http.Response
	text string
}

// do sends a request to a path, below /ui/ unless it begins with a slash. Headers are "Name: value".
func (b *browser) do(method, path string, form url.Values, headers ...string) answer {
	b.Helper()
	body := strings.NewReader(form.Encode())
	if !strings.HasPrefix(path, "/") {
		path = "/ui/" + path
	}
	r, err := http.NewRequestWithContext(b.Context(), method, b.node.URL()+path, body)
	require.NoError(b, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	resp, err := b.http.Do(r)
	require.NoError(b, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(b, err)
	return answer{resp, string(text)}
}

// get loads a page, which must be there.
func (b *browser) get(path string) string {
	b.Helper()
	a := b.do("GET", path, nil)
	require.Equal(b, a.StatusCode, 200, "GET %s: %.300s", path, a.text)
	return a.text
}

var csrf = regexp.MustCompile(`name="csrf" value="([^"]*)"`)

// submit loads a page, fills in its form and sends it.
func (b *browser) submit(path string, fields ...string) answer {
	b.Helper()
	return b.send(b.plan(path, b.get(path)), fields...)
}

func (b *browser) signIn(name string) {
	b.Helper()
	ui, err := url.Parse(b.node.URL() + "/ui/")
	require.NoError(b, err)
	if known := b.sessions[name]; known != nil {
		b.http.Jar.SetCookies(ui, known)
		return
	}
	a := b.submit("sign-in", "token="+token(name))
	require.Equal(b, a.StatusCode, 303, "%.300s", a.text)
	if b.sessions != nil {
		b.sessions[name] = b.http.Jar.Cookies(ui)
	}
}

// every page there is, with what must exist for it.
func pages(b *browser) []string {
	b.Helper()
	b.queue("jobs")
	return []string{"", "queues/jobs", "messages/" + b.enqueue("jobs", client.JSON(1))[0], "dead", "queues/jobs/dead",
		"queues/jobs/undo", "tasks", "webhooks", "attention", "cluster", "past/difference"}
}

// Every page is there, has the headers that keep it to itself, and nothing inline.
func testPages(t *testing.T, b *browser) {
	inline := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son[a-z]+=|javascript:|hx-on|//cdn`)
	for _, path := range pages(b) {
		a := b.do("GET", path, nil)
		assert.Equal(t, a.StatusCode, 200, "%s: %.300s", path, a.text)
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; " +
				"img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; " +
				"frame-ancestors 'none'",
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "same-origin",
		} {
			assert.Equal(t, a.Header.Get(name), want, "%s of %s", name, path)
		}
		assert.Equal(t, inline.FindString(a.text), "", "inline in %s", path)
		for _, m := range regexp.MustCompile(`(?:href|src|action|hx-get)="([^"]*)"`).
			FindAllStringSubmatch(a.text, -1) {
			link := html.UnescapeString(m[1])
			assert.True(t, strings.HasPrefix(link, ".") || link[0] == '?' || link[0] == '#',
				"%s has a link that is not relative: %s", path, link)
		}
	}
	assert.Equal(t, b.do("GET", "nothing", nil).StatusCode, 404)
	assert.Equal(t, b.do("GET", "queues/missing", nil).StatusCode, 404)
	assert.Equal(t, b.do("GET", "?part=nothing", nil, "HX-Request: true").StatusCode, 404)
}

// Static files are versioned and cached; / sends browsers to the console, and programs get links.
func TestRootAndStatic(t *testing.T) {
	t.Parallel()
	b := open(t)
	for _, m := range regexp.MustCompile(`\./(static/[^"]*)"`).FindAllStringSubmatch(b.get(""), -1) {
		a := b.do("GET", html.UnescapeString(m[1]), nil)
		assert.Equal(t, a.StatusCode, 200, "%s", m[1])
		assert.Contains(t, a.Header.Get("Cache-Control"), "immutable")
		again := b.do("GET", m[1], nil, "If-None-Match: "+a.Header.Get("ETag"))
		assert.Equal(t, again.StatusCode, 304, "%s", m[1])
	}
	a := b.do("GET", "/", nil, "Accept: text/html,*/*")
	assert.Equal(t, a.StatusCode, 303)
	assert.Equal(t, a.Header.Get("Location"), "ui/")
	a = b.do("GET", "/", nil)
	assert.Contains(t, a.text, `"console":"ui/"`)

	off := openWith(t, []string{"--no-console"})
	assert.Equal(t, off.do("GET", "", nil).StatusCode, 404)
	assert.False(t, strings.Contains(off.do("GET", "/", nil).text, "console"), "a link to it")
}

// A session begins with a token, has only what the token may do, and is only the console's.
func TestSession(t *testing.T) {
	t.Parallel()
	b := open(t, "root admin", "ann read jobs*", "bob read other*")
	for _, path := range pages(b) {
		a := b.do("GET", path, nil)
		assert.Equal(t, a.StatusCode, 303, "%s without a session", path)
		assert.Contains(t, a.Header.Get("Location"), "sign-in")
	}
	a := b.submit("sign-in", "token=wrong")
	assert.Equal(t, a.StatusCode, 401)
	a = b.submit("sign-in?next=queues/jobs", "token="+token("ann"), "next=queues/jobs")
	assert.Equal(t, a.Header.Get("Location"), "./queues/jobs")

	b.fresh()
	a = b.submit("sign-in", "token="+token("ann"), "next=//evil.example.com/")
	assert.Equal(t, a.Header.Get("Location"), "./")
	cookie := a.Header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/ui/", "Max-Age=43200"} {
		assert.Contains(t, cookie, want)
	}
	assert.False(t, strings.Contains(cookie, token("ann")), "the token is in the cookie")

	assert.Contains(t, b.get("queues/jobs"), "jobs")
	assert.Equal(t, b.do("GET", "queues/other", nil).StatusCode, 403)
	assert.Equal(t, b.do("GET", "webhooks", nil).StatusCode, 403)
	assert.False(t, strings.Contains(b.get(""), `href="./webhooks"`), "a link that is refused")

	// The cookie is nothing to the API, and a changed one nothing to the console.
	value, _, _ := strings.Cut(cookie, ";")
	assert.Equal(t, b.do("GET", "/v1/queues", nil, "Cookie: "+value).StatusCode, 401)
	assert.Equal(t, b.do("GET", "/v1/queues", nil,
		"Authorization: Bearer "+strings.TrimPrefix(value, "qlogd-console=")).StatusCode, 401)
	b.fresh()
	for _, forged := range []string{strings.Replace(value, "ann", "root", 1), value + "0",
		"qlogd-console=" + byReader(t, "root|9999999999"),
		strings.Replace(value, "|", "|9", 1), "qlogd-console=root|9999999999|"} {
		assert.Equal(t, b.do("GET", "", nil, "Cookie: "+forged).StatusCode, 303, "%s", forged)
	}
}

// byReader returns the best cookie that a reader of the auth file can make: of the SHA-256 of a
// token, without the token.
func byReader(t *testing.T, label string) string {
	name, _, _ := strings.Cut(label, "|")
	sum := sha256.Sum256([]byte(token(name)))
	key := hmac.New(sha256.New, sum[:])
	key.Write([]byte("qlogd console session"))
	block, err := aes.NewCipher(key.Sum(nil))
	require.NoError(t, err)
	aead, err := cipher.NewGCMWithRandomNonce(block)
	require.NoError(t, err)
	sealed := aead.Seal(nil, nil, []byte("qlogd_unknown"), []byte(label))
	return label + "|" + base64.RawURLEncoding.EncodeToString(sealed)
}

// A form without the token of its session changes nothing.
func TestCSRF(t *testing.T) {
	t.Parallel()
	b := open(t, "root admin")
	b.signIn("root")
	for _, form := range []url.Values{{}, {"csrf": {""}}, {"csrf": {"0"}}} {
		assert.Equal(t, b.do("POST", "sign-out", form).StatusCode, 403)
	}
	// A HEAD is a GET: it would show the form, and does nothing.
	c, err := b.api.Cluster(t.Context())
	require.NoError(t, err)
	assert.Equal(t, b.do("HEAD", "cluster/nodes/"+c.Nodes[0].ID+"/verify", nil).StatusCode, 200)
	tasks, err := b.api.TaskPage(t.Context(), "", "", 10)
	require.NoError(t, err)
	assert.Equal(t, len(tasks.Tasks), 0)
	old := csrf.FindStringSubmatch(b.get(""))[1]
	assert.Equal(t, b.do("POST", "sign-out", url.Values{"csrf": {old}},
		"Origin: https://evil.example.com").StatusCode, 403)
	b.get("") // still signed in
	b.fresh()
	b.signIn("root")
	assert.Equal(t, b.do("POST", "sign-out", url.Values{"csrf": {old + "0"}}).StatusCode, 403)
	now := csrf.FindStringSubmatch(b.get(""))[1]
	assert.Equal(t, b.do("POST", "sign-out", url.Values{"csrf": {now}}).StatusCode, 303)
	assert.Equal(t, b.do("GET", "", nil).StatusCode, 303, "signed out")
}

// The nodes of a cluster.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Token: token("root"), Flags: []string{
		"--auth-file", authFile(t, "root admin"),
		"--cluster-secret-file", write(t, "a secret of all nodes"),
	}})
	b := browse(t, c.Node(1), token("root"))
	b.queue("jobs")
	b.signIn("root")
	testFollower(b, c)
	testCluster(b, c)
}

// The console of a follower works like the leader's, with the same session, and goes on for readers
// when the leader has died.
func testFollower(b *browser, c *cluster.Cluster) {
	leader := c.WaitLeader()
	b.node = c.Others(leader)[0]
	assert.Equal(b, b.submit("queues/jobs/produce", "payload=1").StatusCode, 303)
	assert.Contains(b, b.get("queues/jobs"), "Enqueued message")
	b.node = leader // a cookie does not name a port
	assert.Contains(b, b.get(""), ">jobs</a>")
	b.node = c.Others(leader)[0]
	leader.Kill9()
	assert.Contains(b, b.get(""), ">jobs</a>")
	assert.Contains(b, b.get("queues/jobs"), `id="m-`)
	leader.Launch()
	c.WaitReady()
}

// Who guesses tokens is slowed down.
func TestSignInIsLimited(t *testing.T) {
	t.Parallel()
	b := open(t, "root admin")
	refused := 0
	for range 12 {
		if a := b.submit("sign-in", "token=guess"); a.StatusCode == 429 {
			refused++
			assert.NotEqual(t, a.Header.Get("Retry-After"), "")
		}
	}
	assert.True(t, refused > 0, "none of 12 attempts was refused")
}

// Below the path of a proxy the cookie has that path, and is Secure where people use https.
func TestSubPath(t *testing.T) {
	t.Parallel()
	b := openWith(t, []string{"--trusted-proxies", "127.0.0.1"}, "root admin")
	form := url.Values{"token": {token("root")}}
	cookieOf := func(headers ...string) string {
		b.fresh()
		page := b.do("GET", "sign-in", nil, headers...)
		form.Set("csrf", csrf.FindStringSubmatch(page.text)[1])
		first, _, _ := strings.Cut(page.Header.Get("Set-Cookie"), ";")
		a := b.do("POST", "sign-in", form, append(headers, "Cookie: "+first)...)
		require.Equal(t, a.StatusCode, 303, "%.300s", a.text)
		return a.Header.Get("Set-Cookie")
	}
	assert.Contains(t, cookieOf("X-Forwarded-Prefix: /qlogd"), "Path=/qlogd/ui/")
	assert.Contains(t, cookieOf("Referer: "+b.node.URL()+"/ops/ui/sign-in"), "Path=/ops/ui/")
	assert.Contains(t, cookieOf("X-Forwarded-Proto: https"), "Secure")
	assert.Contains(t, cookieOf("Referer: https://evil.example.com/x/ui/"), "Path=/ui/")
	assert.False(t, strings.Contains(cookieOf(), "Secure"), "over http")

	b.fresh() // behind a proxy that replaces the Host, the first page's cookie does not come back
	a := b.do("POST", "sign-in", form, "Referer: "+b.node.URL()+"/late/ui/sign-in")
	require.Equal(t, a.StatusCode, 303, "%.300s", a.text)
	assert.Contains(t, a.Header.Get("Set-Cookie"), "Path=/late/ui/")
}
