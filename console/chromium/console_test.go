package chromium

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Every page loads without a complaint of the browser, in both themes and on a phone, where only
// tables scroll sideways; axe-core finds nothing serious.
func TestPages(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	s := seed(t, n)
	b := open(t, n.URL())
	axe, err := os.ReadFile("../../bin/axe.min.js")
	if err != nil {
		t.Log("without axe-core: make console-test fetches it")
	}
	for _, path := range s.paths {
		for _, theme := range []string{"light", "dark"} {
			if testing.Short() && theme == "dark" {
				continue
			}
			b.look(theme, 1280, 860)
			b.open(path)
			if axe != nil {
				b.audit(path+" "+theme, string(axe))
			}
		}
		b.look("light", 375, 800)
		b.open(path)
		wide := value[[]string](b, `document.documentElement.scrollWidth <= innerWidth ? [] :
			[...document.querySelectorAll("body *")].filter(el => !el.closest(".scroll, nav, dialog") &&
				el.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map(el => el.outerHTML.slice(0, 120))`)
		assert.Equal(t, strings.Join(wide, " | "), "", "%s is wider than a phone", path)
		for _, p := range b.complaints() {
			t.Errorf("%s: %s", path, p)
		}
	}
}

// audit runs axe-core on the page.
func (b *tab) audit(what, axe string) {
	b.Helper()
	_ = value[any](b, axe+"; 0")
	found := value[[]string](b, `axe.run(document, {resultTypes: ["violations"]}).then(r =>
		r.violations.filter(v => v.impact === "serious" || v.impact === "critical").map(v =>
			v.id + ": " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(" | ")))`,
		chromedp.EvalAwaitPromise)
	for _, f := range found {
		b.Errorf("%s: axe-core: %s", what, f)
	}
}

// What people do in dialogs is in the log.
func TestActions(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	s := seed(t, n)
	b, c, ctx := open(t, n.URL()), n.Client(), t.Context()
	last := func(queue, kind string) wire.Event {
		t.Helper()
		l, err := c.Events(ctx, client.EventQuery{
			From: "start", Queue: queue, Types: []string{kind}, Limit: 1000})
		require.NoError(t, err)
		require.True(t, len(l.Events) > 0, "no %s in %s", kind, queue)
		return l.Events[len(l.Events)-1]
	}

	b.open("queues/invoices.render")
	b.press("Produce")
	b.fill("dialog textarea[name=payload]", `{"invoice": 7}`)
	b.fill("dialog input[name=kind]", "by-hand")
	b.press("Enqueue")
	b.true("the dialog is gone", `!document.querySelector("dialog[open]")`)
	b.settled()
	assert.Equal(t, last("invoices.render", "enqueued").Kind, "by-hand")

	b.open("queues/invoices.render")
	b.press("Pause")
	b.fill("dialog input[name=reason]", "a test")
	b.press("Pause invoices")
	b.sees("paused")
	assert.Equal(t, last("invoices.render", "queue_paused").Reason, "a test")

	b.open("queues/invoices.render")
	b.press("Purge")
	b.fill("dialog input[name=typed]", "invoices.render")
	b.press("Purge 1 message")
	b.true("the dialog is gone", `!document.querySelector("dialog[open]")`)
	b.settled()
	assert.Equal(t, last("invoices.render", "queue_purged").Count, int64(1))

	b.open("tasks/" + s.task)
	b.press("Cancel")
	b.press("Cancel the task")
	b.sees("Cancelled: Replay in payments")
	task, err := c.Task(ctx, s.task)
	require.NoError(t, err)
	assert.Equal(t, task.Status, wire.TaskCancelled)
	b.press("Resume")
	b.press("Resume the task")
	b.sees("Resumed: ")
	b.sees("completed") // without a reload

	b.open("webhooks/github")
	b.press("Delete")
	b.fill("dialog input[name=typed]", "github")
	b.press("Delete the webhook")
	b.sees("Deleted webhook github.")
	l, err := c.Events(ctx, client.EventQuery{From: "start", Types: []string{"webhook_deleted"}})
	require.NoError(t, err)
	assert.Equal(t, len(l.Events), 1)

	b.open("cluster")
	b.press("Take a checkpoint")
	b.press("Take a checkpoint on")
	b.sees("Took checkpoints: ")
}

// auth writes an auth file: "NAME ROLE [QUEUES]"; the token of each is "token_of_" and the name.
func auth(t *testing.T, who ...string) cluster.Options {
	t.Helper()
	text := ""
	for _, w := range who {
		f := append(strings.Fields(w), "*")
		sum := sha256.Sum256([]byte("token_of_" + f[0]))
		text += fmt.Sprintf("- name: %s\n  sha256: %s\n  roles: [%s]\n", f[0],
			hex.EncodeToString(sum[:]), f[1])
		if f[1] != "admin" {
			text += fmt.Sprintf("  queues: ['%s']\n", f[2])
		}
	}
	file := filepath.Join(t.TempDir(), "auth.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	first, _, _ := strings.Cut(who[0], " ")
	return cluster.Options{Flags: []string{"--auth-file", file}, Token: "token_of_" + first}
}

func (b *tab) signIn(name string) {
	b.Helper()
	b.open("sign-in")
	b.fill("input[name=token]", "token_of_"+name)
	b.click("form.action button")
	b.true("signed in", `!!document.querySelector("form.user") && document.readyState === "complete"`)
	b.settled()
}

// A token signs in, and is offered only what it may do. A form without the session's token is
// refused.
func TestSignIn(t *testing.T) {
	o := auth(t, "root admin", "ann read payments")
	n := cluster.Start(t, o)
	seed(t, n, client.WithToken(o.Token))
	b := open(t, n.URL())
	b.open("queues/payments")
	b.true("it asks for a token", `location.pathname === "/ui/sign-in"`)
	b.signIn("ann")
	b.open("queues/payments")
	b.true("nothing to change", `!document.querySelector("main .buttons a")`)
	b.true("no webhooks", `!document.querySelector("nav a[href*=webhooks]")`)
	b.press("Sign out")
	b.true("signed out", `location.pathname === "/ui/sign-in" && document.readyState === "complete"`)

	b.signIn("root")
	b.open("queues/payments")
	b.true("more to do", `!!document.querySelector("main .buttons a")`)
	status := value[int](b, `fetch("payments/pause", {method: "POST",
		body: new URLSearchParams({reason: "forged"})}).then(r => r.status)`, chromedp.EvalAwaitPromise)
	assert.Equal(t, status, 403)
	b.expect("403")
	q, err := n.Client(client.WithToken(o.Token)).Queue(t.Context(), "payments")
	require.NoError(t, err)
	assert.False(t, q.Paused, "paused by a forged form")
	assert.Equal(t, value[string](b, "document.cookie"), "", "scripts see the session")
}

// Everything works by keyboard: the first Tab offers to skip to the content, the focus is visible,
// Escape closes the dialog and gives the focus back.
func TestKeyboard(t *testing.T) {
	b := open(t, cluster.Start(t, cluster.Options{}).URL())
	b.open("cluster")
	b.do("tab", chromedp.KeyEvent("\t"))
	b.true("the skip link", `document.activeElement.className === "skip"`)
	seen := map[string]bool{}
	for range 12 {
		b.do("tab", chromedp.KeyEvent("\t"))
		at := value[string](b, `document.activeElement.textContent.trim()`)
		seen[at] = true
		outline := value[string](b, `getComputedStyle(document.activeElement).outlineStyle`)
		assert.Equal(t, outline, "solid", "focus of %q", at)
		if at == "Take a checkpoint" {
			break
		}
	}
	assert.True(t, seen["Overview"] && seen["Take a checkpoint"], "not reached: %v", seen)
	b.do("enter", chromedp.KeyEvent("\r"))
	b.true("the dialog", `document.querySelector("#dialog").open &&
		document.querySelector("#dialog").contains(document.activeElement)`)
	b.do("escape", chromedp.KeyEvent("\u001b"))
	b.true("no dialog", `!document.querySelector("#dialog").open`)
	b.true("the focus is back", `document.activeElement.textContent.trim() === "Take a checkpoint"`)
}

// Where the browser has no clipboard API, over plain http from another machine, ids are copied all
// the same, and commands in a dialog.
func TestCopy(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	s := seed(t, n)
	b := open(t, n.URL())
	b.open("messages/" + s.message)
	_ = value[any](b, `Object.defineProperty(navigator, "clipboard", {value: undefined});
		document.addEventListener("copy", e => { window.copied = e.target.value; }); 0`)
	b.click(".kv .copy")
	b.true("the id is copied", fmt.Sprintf(`copied === %q && spoken.textContent === "Copied"`, s.message))
	b.press("Erase")
	b.click("dialog .as summary")
	b.click("dialog .copy")
	b.true("a command is copied", `copied.startsWith("curl -X POST")`)
	b.true("the focus is on the button", `document.activeElement.matches("dialog .copy")`)
}

// The console works on a follower, and goes on when the leader dies while a page is open. When the
// node itself is away, the page says so, until it is back.
func TestCluster(t *testing.T) {
	c := cluster.StartCluster(t, cluster.Options{})
	seed(t, c.Node(0))
	var leader, follower *cluster.Node
	cluster.Until(t, func() error {
		v, err := c.Node(0).Status(t.Context())
		if err != nil || v.LeaderID == "" {
			return fmt.Errorf("no leader: %w", err)
		}
		for _, n := range c.Nodes() {
			if n.Name() == v.LeaderID {
				leader = n
			} else {
				follower = n
			}
		}
		return nil
	})
	b := open(t, follower.URL())
	b.open("queues/emails")
	b.press("Pause")
	b.press("Pause emails")
	b.sees("paused") // written through the leader

	b.open("cluster")
	leader.Kill9()
	b.true("another leads", fmt.Sprintf(
		`![...document.querySelectorAll(".tiles dd")].some(el => ["none known", %q].includes(el.textContent.trim()))`,
		leader.Name()))
	b.open("queues/emails")
	b.press("Resume")
	b.press("Resume emails")
	b.true("resumed", `!document.querySelector(".head .badge.s-paused")`)

	b.open("cluster")
	follower.Kill9()
	b.true("the page says that the node is away", `!document.querySelector("#connection").hidden`)
	b.complaints() // of calls that failed
	leader.Launch()
	follower.Launch()
	require.NoError(t, follower.WaitReady())
	b.true("the node is back", `document.querySelector("#connection").hidden`)
	b.complaints()
	c.WaitReady()
}

// The console works below the path of a proxy: sign-in, links, dialogs and live parts.
func TestProxy(t *testing.T) {
	o := auth(t, "root admin")
	o.Flags = append(o.Flags, "--trusted-proxies", "127.0.0.1")
	n := cluster.Start(t, o)
	s := seed(t, n, client.WithToken(o.Token))
	to, err := url.Parse(n.URL())
	require.NoError(t, err)
	const prefix = "/ops/qlogd"
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.SetXForwarded()
		r.Out.Host = r.In.Host
		r.Out.Header.Set("X-Forwarded-Prefix", prefix)
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, prefix)
		r.Out.URL.RawPath = strings.TrimPrefix(r.In.URL.RawPath, prefix)
		if r.Out.URL.Path == r.In.URL.Path {
			r.Out.URL.Path = "/outside" + r.In.URL.Path
		}
	}})
	defer proxy.Close()
	b := open(t, proxy.URL+prefix)
	b.signIn("root")
	for _, path := range s.paths {
		b.open(path)
		b.true("below the prefix", fmt.Sprintf("location.pathname.startsWith(%q)", prefix+"/ui/"))
	}
	b.open("queues/emails")
	b.press("Pause")
	b.press("Pause emails")
	b.sees("paused")
	b.true("below the prefix", fmt.Sprintf("location.pathname === %q", prefix+"/ui/queues/emails"))
}
