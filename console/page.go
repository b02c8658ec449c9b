package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/qlogd/qlogd/client"
)

// page is one request to the console, and what its template sees.
type page struct {
	c       *Console
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context // of the calls: with the rights of the session
	api     *client.Client
	ID      string   // of the request, in logs
	session *session // nil: there is no auth file, or nobody has signed in
	cookie  string   // the value that the browser sent or gets
	root    string   // the relative path to /ui/
	base    string   // the URL of the API, for commands that are shown

	Title string
	Nav   string // the entry of the navigation that is current
	At    string // the instant that is shown; "" is now
	Flash string // what the form before has done
	Data  any    // of this page
}

// errAnswered says that the answer has been written.
var errAnswered = errors.New("answered")

// failure is an error that a page answers with.
type failure struct {
	Status      int
	Title, Text string
}

func (f *failure) Error() string { return f.Title + ": " + f.Text }

// errPanic is what a page answers whose handler has failed in an unexpected way.
var errPanic = &failure{http.StatusInternalServerError, "Something went wrong",
	"The node's log has the cause under this request's id."}

func (c *Console) newPage(w http.ResponseWriter, r *http.Request, ctx context.Context) *page {
	p := &page{
		c: c, w: w, r: r, ctx: ctx, api: c.api, ID: idOf(r.Context()),
		root: cmp.Or(strings.Repeat("../", depth(r)), "./"),
	}
	if q := r.URL.Query(); q.Has("at") {
		p.At = pastOf(q.Get("at"), time.Now())
		r.URL.RawQuery = strings.TrimPrefix(p.Query("at", p.At), "?")
	}
	prefix, secure := p.published()
	p.base = "http://" + r.Host + prefix
	if u := p.public(); u != nil {
		p.base = u.Scheme + "://" + u.Host + prefix
	} else if secure {
		p.base = "https://" + r.Host + prefix
	}
	p.identify()
	p.readFlash()
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	return p
}

// depth counts the folders between /ui/ and the page that links are relative to: of a fragment that
// is the page in which htmx shows it.
func depth(r *http.Request) int {
	at := r.URL.EscapedPath()
	if u, err := url.Parse(r.Header.Get("HX-Current-URL")); err == nil {
		if _, _, found := strings.Cut(u.EscapedPath(), "/ui/"); found {
			at = u.EscapedPath()
		}
	}
	_, below, _ := strings.Cut(at, "/ui/")
	return strings.Count(below, "/")
}

// policy permits the console's own scripts, style, images, calls and forms, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// fragment reports whether htmx asks for a part of a page.
func (p *page) fragment() bool { return p.r.Header.Get("HX-Request") == "true" }

// part reports whether the answer needs what a part of the page shows: it is the whole page, or
// that part.
func (p *page) part(name string) bool {
	asked := p.r.URL.Query().Get("part")
	return asked == "" || !p.fragment() || asked == name
}

// Link returns the relative URL of a page, at the instant that is shown: Link "queues" "orders".
func (p *page) Link(parts ...string) string { return p.link(p.At, parts...) }

// LinkNow is Link at the present.
func (p *page) LinkNow(parts ...string) string { return p.link("", parts...) }

// LinkWith is Link with further parameters, from dict.
func (p *page) LinkWith(query map[string]any, parts ...string) string {
	values := url.Values{}
	if p.At != "" {
		values.Set("at", p.At)
	}
	for name, v := range query {
		values.Set(name, fmt.Sprint(v))
	}
	return p.link("", parts...) + "?" + values.Encode()
}

func (p *page) link(at string, parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = url.PathEscape(part)
	}
	u := p.root + strings.Join(escaped, "/")
	if at != "" {
		u += "?at=" + url.QueryEscape(at)
	}
	return u
}

// Query returns the query of this page with some parameters changed, pairs of a name and a value;
// "" removes one. It is a link to the same page, or with part=NAME to what is in "part-NAME" of it.
func (p *page) Query(changes ...string) string {
	q := p.r.URL.Query()
	q.Del("part")
	q.Del("last")
	for i := 0; i+1 < len(changes); i += 2 {
		if changes[i+1] == "" {
			q.Del(changes[i])
		} else {
			q.Set(changes[i], changes[i+1])
		}
	}
	return "?" + q.Encode()
}

// Param returns a parameter of this page's query.
func (p *page) Param(name string) string { return p.r.URL.Query().Get(name) }

// Static returns the URL of a file below static/. It changes with the files.
func (p *page) Static(name string) string {
	return p.root + "static/" + name + "?v=" + p.c.version
}

// May reports whether the session has a role on a queue; "" is all queues.
func (p *page) May(role, queue string) bool {
	return p.c.opts.Tokens == nil ||
		p.session != nil && p.c.opts.Tokens.May(p.session.sum, role, queue)
}

// Can reports whether the page may offer what needs a role: the past is read only.
func (p *page) Can(role, queue string) bool { return p.At == "" && p.May(role, queue) }

// User returns who has signed in, "" where nobody needs to.
func (p *page) User() string {
	if p.session == nil {
		return ""
	}
	return p.session.name
}

// Version is the program's.
func (p *page) Version() string { return p.c.opts.Version }

// render answers with a page, or with the part of it that htmx asks for: the template "part-NAME"
// for ?part=NAME, else all of the content (in a dialog).
func (p *page) render(status int, name, title string, data any) error {
	t := p.c.pages[name]
	if t == nil {
		return fmt.Errorf("console: there is no template %q", name)
	}
	p.Title, p.Data = title, data
	what := "layout"
	if p.fragment() {
		what = "content"
		if part := p.r.URL.Query().Get("part"); part != "" {
			if what = "part-" + part; t.Lookup(what) == nil {
				return &failure{http.StatusNotFound, "There is no such part", part}
			}
		}
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, what, p); err != nil {
		return fmt.Errorf("console: template %s: %w", name, err)
	}
	p.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	p.w.WriteHeader(status)
	_, _ = p.w.Write(b.Bytes()) // an error: the browser has gone
	return nil
}

// show is render of a page that was found.
func (p *page) show(name, title string, data any) error {
	return p.render(http.StatusOK, name, title, data)
}

// fail answers with an error.
func (p *page) fail(err error) {
	f := new(*errPanic)
	var e *client.Error
	switch {
	case errors.As(err, &f):
	case errors.As(err, &e):
		if e.Problem.Status == http.StatusUnauthorized { // revoked meanwhile
			p.session = nil
			if p.mustSignIn() != nil {
				return
			}
		}
		f.Status, f.Title, f.Text = e.Problem.Status, e.Problem.Title, e.Problem.Detail
		if ms := e.Problem.RetryAfterMS; ms > 0 {
			p.w.Header().Set("Retry-After", strconv.FormatInt((ms+999)/1000, 10))
		}
		if f.Status < 400 {
			f.Status = http.StatusBadGateway
		}
	case errors.Is(err, context.Canceled):
		return
	case errors.Is(err, context.DeadlineExceeded):
		f.Status, f.Title, f.Text = http.StatusGatewayTimeout, "The node did not answer in time", ""
	default:
		p.c.opts.Logger.Error("console page failed",
			"request_id", p.ID, "path", p.r.URL.Path, "error", err)
	}
	p.r.URL.RawQuery = strings.TrimPrefix(p.Query(), "?") // all of the error, not a part of it
	if err := p.render(f.Status, "error", f.Title, f); err != nil {
		http.Error(p.w, f.Title, f.Status)
	}
}

// redirect answers with a relative URL, which also works below the path of a proxy.
func (p *page) redirect(to string) error {
	p.w.Header().Set("Location", to)
	p.w.WriteHeader(http.StatusSeeOther)
	return errAnswered
}

// What a form has done is shown once, on the next page.
const (
	flashName = "qlogd-done"
	maxFlash  = 1000 // bytes
)

// done answers a form that was carried out, unless with an error: the next page shows the text.
func (p *page) done(err error, text string, to ...string) error {
	if err != nil {
		return err
	}
	if len(text) > maxFlash {
		text = strings.ToValidUTF8(text[:maxFlash], "") + "…"
	}
	p.put(flashName, base64.RawURLEncoding.EncodeToString([]byte(text)), flashFor)
	return p.redirect(p.LinkNow(to...))
}

func (p *page) readFlash() {
	c, err := p.r.Cookie(flashName)
	if err != nil || p.fragment() || p.r.Method != http.MethodGet {
		return
	}
	if text, err := base64.RawURLEncoding.DecodeString(c.Value); err == nil {
		p.Flash = strings.ToValidUTF8(string(text), "�")
	}
	p.put(flashName, "", -flashFor)
}

// loadTemplates parses each page together with the layout and the components.
func loadTemplates() (map[string]*template.Template, error) {
	shared, err := template.New("").Funcs(funcs).ParseFS(files,
		"templates/layout.html", "templates/components.html")
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, err
	}
	pages := map[string]*template.Template{}
	for _, name := range names {
		t, err := shared.Clone()
		if err == nil {
			_, err = t.ParseFS(files, name)
		}
		if err != nil {
			return nil, err
		}
		pages[strings.TrimSuffix(path.Base(name), ".html")] = t
	}
	return pages, nil
}

// serveStatic returns the handler of the files below static/, and their version. Their URLs have the
// version, so a browser may keep them.
func serveStatic() (http.Handler, string, error) {
	sum := sha256.New()
	err := fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(name)
		sum.Write(b)
		return err
	})
	version := hex.EncodeToString(sum.Sum(nil)[:6])
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", policy)
		if strings.HasSuffix(r.URL.Path, "/") { // a folder
			http.NotFound(w, r)
			return
		}
		h.Set("ETag", `"`+version+`"`)
		h.Set("Cache-Control", "max-age=300")
		if r.URL.Query().Get("v") == version {
			h.Set("Cache-Control", "max-age=31536000, immutable")
		}
		serve.ServeHTTP(w, r)
	}), version, err
}
