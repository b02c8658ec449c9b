// Package console is the web console under /ui/: pages for people, made of the calls that a script
// could make.
//
// The console is a client of the API in the same process. Each page sends its requests through the
// node's own handler, in memory, with the rights of the token that signed in. So nothing is decided
// twice: limits, rights, errors, followers and the past (at=) are the API's. What a page needs and
// the API lacks is added to the API.
//
// Pages are rendered on the server. Scripts only make them live: without scripts all links and
// forms work. Names, keys, payloads, headers and errors are hostile: html/template escapes them,
// and a strict Content-Security-Policy permits nothing inline and nothing from another host.
package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/client"
)

// Options are what the console runs on.
type Options struct {
	API    http.Handler // the node's own; it also answers what is not the console's
	Tokens Tokens       // nil: there is no auth file, everybody may do everything

	PublicURLs []string                         // at which proxies publish the node
	Proxies    []netip.Prefix                   // whose X-Forwarded-Proto and -Prefix are believed
	Source     func(r *http.Request) netip.Addr // the address that a request comes from
	Version    string                           // of the program
	Logger     *slog.Logger
}

// Console serves the pages. It is created by New.
type Console struct {
	opts      Options
	public    []*url.URL
	api       *client.Client
	routes    *http.ServeMux
	pages     map[string]*template.Template // by name of the file, without .html
	version   string                        // of the static files
	attempts  *lru.Cache[netip.Addr, *rate.Limiter]
	histories *lru.Cache[[sha256.Size]byte, *history] // by token
	counts    *lru.Cache[string, *groupCount]
}

// pages lists the routes of each page. A route's pattern is relative to /ui/.
var pages = [][]route{
	overviewPages, queuePages, messagePages, deadPages, pastPages, differencePages, taskPages,
	webhookPages, attentionPages, clusterPages,
}

// route is one page, part of a page or action.
type route struct {
	pattern string // such as "GET queues/{queue}"; a form, which is a POST, is also a GET
	nav     string // the entry of the navigation that is current
	handle  func(p *page) error
}

//go:embed templates static
var files embed.FS

// New returns a console. An error is in its own files, or in a public URL.
func New(opts Options) (*Console, error) {
	c := &Console{
		opts: opts, routes: http.NewServeMux(),
		attempts:  newCache[netip.Addr, *rate.Limiter](signInKept),
		histories: newCache[[sha256.Size]byte, *history](historiesKept),
		counts:    newCache[string, *groupCount](countsKept),
	}
	for _, text := range opts.PublicURLs {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		c.public = append(c.public, u)
	}
	var err error
	if c.api, err = newClient(opts.API); err != nil {
		return nil, err
	}
	static, version, err := serveStatic()
	if err != nil {
		return nil, err
	}
	if c.pages, err = loadTemplates(); err != nil {
		return nil, err
	}
	c.version = version
	c.routes.Handle("GET /ui/static/", http.StripPrefix("/ui/", static))
	c.routes.Handle("GET /ui/sign-in", c.open((*page).signIn))
	c.routes.Handle("POST /ui/sign-in", c.open((*page).signedIn))
	c.routes.Handle("POST /ui/sign-out", c.open((*page).signOut))
	for _, r := range slices.Concat(pages...) {
		method, path, _ := strings.Cut(r.pattern, " ")
		check := (*page).mustSignIn
		if method == http.MethodPost {
			check = (*page).mustBeAble
			c.routes.Handle("POST /ui/"+path, c.page(r, check))
		}
		c.routes.Handle("GET /ui/"+path, c.page(r, check))
	}
	c.routes.Handle("/ui/", c.open(func(p *page) error {
		return &failure{http.StatusNotFound, "There is no such page", p.r.URL.Path}
	}))
	return c, nil
}

// ServeHTTP serves the pages below /ui/, sends browsers there from /, and passes the rest on to the
// API.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/ui/"):
		w, r = withID(w, r)
		if strings.Contains(r.URL.Path, "//") { // ServeMux would redirect out of a proxy's prefix
			r.URL.Path = "/ui/404"
		}
		c.routes.ServeHTTP(w, r)
	case r.URL.Path == "/ui" || r.URL.Path == "/" && isBrowser(r):
		w.Header().Set("Location", "ui/")
		w.Header().Set("Vary", "Accept")
		w.WriteHeader(http.StatusSeeOther)
	default:
		c.opts.API.ServeHTTP(w, r)
	}
}

// isBrowser reports whether a person looks at the answer.
func isBrowser(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		strings.Contains(r.Header.Get("Accept"), "text/html")
}

// open returns the handler of a page that needs no session.
func (c *Console) open(handle func(p *page) error) http.Handler {
	return c.page(route{handle: handle}, func(*page) error { return nil })
}

// page returns a handler that sets the headers of all pages, finds the session, and refuses a POST
// without a CSRF token.
func (c *Console) page(rt route, check func(p *page) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead { // net/http drops the body; whatever is no POST changes nothing
			r = r.WithContext(r.Context())
			r.Method = http.MethodGet
		}
		ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
		defer cancel()
		p := c.newPage(w, r, ctx)
		p.Nav = rt.nav
		defer func() {
			if v := recover(); v != nil {
				c.opts.Logger.Error("panic", "request_id", p.ID, "path", r.URL.Path,
					"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				p.fail(errPanic)
			}
		}()
		err := check(p)
		if err == nil && r.Method == http.MethodPost {
			err = p.readForm()
		}
		if err == nil {
			err = rt.handle(p)
		}
		if err != nil && !errors.Is(err, errAnswered) {
			p.fail(err)
		}
	})
}
