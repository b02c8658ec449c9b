package chromium

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// browser is the one that all tests share; each has its own cookies. Set by TestMain.
var browser context.Context

func TestMain(m *testing.M) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		fmt.Println("chromium is not installed: apt-get install chromium")
		if os.Getenv("CONSOLE_TEST") != "" {
			os.Exit(1)
		}
		return
	}
	if os.Getenv("QLOGD_BIN") == "" {
		fmt.Println("QLOGD_BIN names no program: make console-test builds it")
		os.Exit(1)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.NoSandbox, chromedp.Flag("hide-scrollbars", true), chromedp.Flag("disable-gpu", true))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	if err := chromedp.Do(ctx); err != nil {
		fmt.Println("chromium does not start:", err)
		os.Exit(1)
	}
	browser = ctx
	code := cluster.Run(m)
	cancel()
	stop()
	os.Exit(code)
}

// tab is a person with a browser of their own. What the browser complains about fails the test.
type tab struct {
	*testing.T
	ctx  context.Context
	base string // of the console, ends with /ui/

	mu       sync.Mutex
	problems []string
}

// patience bounds each step. The machine may be busy.
const patience = 60 * time.Second

func open(t *testing.T, base string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{T: t, ctx: ctx, base: base + "/ui/"}
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, b.listen))
	t.Cleanup(func() {
		for _, p := range b.complaints() {
			t.Errorf("the browser reports: %s", p)
		}
	})
	b.look("light", 1280, 860)
	return b
}

// listen keeps what the browser reports as wrong: errors of scripts, what the policy of the page
// forbids, answers that are errors, and dialogs that a script opens.
func (b *tab) listen(ev any) {
	text := ""
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "assert" {
			text = "console." + string(e.Type)
			for _, a := range e.Args {
				text += " " + string(a.Value) + a.Description
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Source == "security" {
			text = e.Entry.Text + " " + e.Entry.URL
		}
	case *page.EventJavascriptDialogOpening:
		text = "a script opened a dialog: " + e.Message
	}
	if text != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.problems = append(b.problems, text)
	}
}

// complaints returns what the browser has reported since the last call.
func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.problems
	b.problems = nil
	return all
}

// expect takes a complaint that the test has caused.
func (b *tab) expect(part string) {
	b.Helper()
	b.until("the browser complains of "+part, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, p := range b.problems {
			if strings.Contains(p, part) {
				b.problems = append(b.problems[:i], b.problems[i+1:]...)
				return nil
			}
		}
		return errors.New("no complaint")
	})
}

func (b *tab) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.NoError(b, chromedp.Do(ctx, steps...), "%s", what)
}

// look sets the theme and the size of the window.
func (b *tab) look(theme string, width, height int64) {
	b.Helper()
	b.do("resize", chromedp.EmulateViewport(width, height))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	require.NoError(b, err)
}

// open loads a page below /ui/ and waits for its parts.
func (b *tab) open(path string) {
	b.Helper()
	b.do("open "+path, chromedp.Navigate(b.base+path))
	b.settled()
}

// settled waits until htmx has loaded what the page asks for.
func (b *tab) settled() {
	b.Helper()
	b.true("the page is loaded", `document.readyState === "complete" && window.htmx !== undefined &&
		!document.querySelector(".htmx-request, [hx-trigger=load] > .muted:only-child")`)
}

func (b *tab) click(sel string) {
	b.Helper()
	b.true(sel+" is there", fmt.Sprintf("!!document.querySelector(%q)", sel))
	b.do("click "+sel, chromedp.Click(sel))
}

// press clicks the first visible link or button with a text.
func (b *tab) press(text string) {
	b.Helper()
	b.true("there is "+text, fmt.Sprintf(`(() => {
		const within = document.querySelector("dialog[open]") ?? document;
		const el = [...within.querySelectorAll("a, button")].find(el =>
			el.textContent.trim().startsWith(%q) && el.offsetParent !== null);
		if (!el) return false;
		el.click();
		return true;
	})()`, text))
}

func (b *tab) fill(sel, value string) {
	b.Helper()
	b.true(sel+" is there", fmt.Sprintf(`(() => {
		const el = document.querySelector(%q);
		if (!el) return false;
		el.value = %q;
		return true;
	})()`, sel, value))
}

// true waits until an expression is true.
func (b *tab) true(what, expression string) {
	b.Helper()
	b.until(what, func() error {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		if err == nil && !ok {
			err = errors.New("it is not")
		}
		return err
	})
}

// sees waits until a text is on the page.
func (b *tab) sees(text string) {
	b.Helper()
	b.true("the page says "+text, fmt.Sprintf("document.body?.innerText.includes(%q)", text))
}

func (b *tab) until(what string, look func() error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := cluster.Poll(ctx, look); err != nil {
		page, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](
			`location.href + "\n" + (document.body?.innerText ?? "").slice(0, 800)`))
		b.Fatalf("%s: %v\n%s", what, err, page)
	}
}

// value is what an expression gives.
func value[T any](b *tab, expression string, opts ...chromedp.EvaluateOption) T {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, opts...))
	require.NoError(b, err, "%s", expression)
	return v
}
