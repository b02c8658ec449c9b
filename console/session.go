package console

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Tokens are the tokens of an auth file, each known by its SHA-256. *api.Auth is one.
type Tokens interface {
	// Name returns the name of a token that is valid now, "" for none.
	Name(sum [sha256.Size]byte) string
	// Sums returns the tokens of a name that are valid now.
	Sums(name string) [][sha256.Size]byte
	// May reports whether a token has a role on a queue; "" is all queues.
	May(sum [sha256.Size]byte, role, queue string) bool
	// As returns a context whose requests to the API, in this process, are the token's.
	As(ctx context.Context, sum [sha256.Size]byte) context.Context
}

const (
	cookieName = "qlogd-console"
	sessionFor = 12 * time.Hour
	maxForm    = 8 << 20 // bytes of a form: a payload of 1 MiB, encoded as three bytes each

	maxStranger = 16 << 10 // bytes of the form of a browser that has not signed in
)

// session is who has signed in. Its cookie is NAME|EXPIRY|SEALED: the token, encrypted with a key
// that derives from the SHA-256 that the auth file has of it. So every node with the same auth file
// opens it without state; the cookie does not give its holder the token, and a reader of the file cannot
// make a cookie. A session ends when its token leaves the file.
type session struct {
	name    string
	sum     [sha256.Size]byte
	expires time.Time
}

// label is the part of the cookie that is not encrypted.
func (s *session) label() string {
	return s.name + "|" + strconv.FormatInt(s.expires.Unix(), 10)
}

// cookie returns the cookie's value.
func (s *session) cookie(token string) string {
	sealed := s.aead().Seal(nil, nil, []byte(token), []byte(s.label()))
	return s.label() + "|" + base64.RawURLEncoding.EncodeToString(sealed)
}

// opens reports whether a cookie's encrypted part has the session's token.
func (s *session) opens(sealed []byte) bool {
	token, err := s.aead().Open(nil, nil, sealed, []byte(s.label()))
	return err == nil && sha256.Sum256(token) == s.sum
}

func (s *session) aead() cipher.AEAD {
	key := hmac.New(sha256.New, s.sum[:])
	key.Write([]byte("qlogd console session"))
	block, err := aes.NewCipher(key.Sum(nil))
	if err != nil {
		panic(err) // the key has another length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has another block size
	}
	return aead
}

// sessionOf returns the session of a cookie, nil if it is not valid (any more).
func (c *Console) sessionOf(cookie string) *session {
	parts := strings.Split(cookie, "|")
	if c.opts.Tokens == nil || len(parts) != 3 {
		return nil
	}
	unix, err := strconv.ParseInt(parts[1], 10, 64)
	sealed, err2 := base64.RawURLEncoding.DecodeString(parts[2])
	expires := time.Unix(unix, 0)
	if err != nil || err2 != nil || !time.Now().Before(expires) {
		return nil
	}
	for _, sum := range c.opts.Tokens.Sums(parts[0]) {
		if s := (&session{parts[0], sum, expires}); s.opens(sealed) {
			return s
		}
	}
	return nil
}

// identify reads the session from the cookie. Without one the cookie is random: then it only keeps
// other sites from sending forms.
func (p *page) identify() {
	if c, err := p.r.Cookie(cookieName); err == nil {
		p.cookie = c.Value
	}
	if p.session = p.c.sessionOf(p.cookie); p.session != nil {
		p.ctx = p.c.opts.Tokens.As(p.ctx, p.session.sum)
	}
}

// who returns the SHA-256 of the session's token, zero without a session.
func (p *page) who() (sum [sha256.Size]byte) {
	if p.session != nil {
		sum = p.session.sum
	}
	return sum
}

// mustSignIn sends a person who has not signed in to the form, if there is an auth file.
func (p *page) mustSignIn() error {
	if p.c.opts.Tokens == nil || p.session != nil {
		return nil
	}
	if p.fragment() {
		p.w.Header().Set("HX-Refresh", "true")
		p.w.WriteHeader(http.StatusUnauthorized)
		return errAnswered
	}
	next := strings.TrimPrefix(p.r.URL.RequestURI(), "/ui/")
	if p.r.Method == http.MethodGet && next != "" {
		return p.redirect(p.root + "sign-in?next=" + url.QueryEscape(next))
	}
	return p.redirect(p.root + "sign-in")
}

// mustBeAble refuses a form that changes something: of a past, and to those that may not send it.
func (p *page) mustBeAble() error {
	produces := strings.HasSuffix(p.r.URL.Path, "/produce") &&
		p.May("produce", p.r.PathValue("queue"))
	switch err := p.mustSignIn(); {
	case err != nil:
		return err
	case p.At != "":
		return &failure{http.StatusConflict, "The past is read only",
			"Go back to now to change something."}
	case !produces && !p.May("admin", ""):
		return &failure{http.StatusForbidden, "Not with this token", "It may not change this."}
	}
	return nil
}

// CSRF returns the token that each form sends back. A page of another site cannot read the cookie,
// so it cannot compute it.
func (p *page) CSRF() string {
	if p.cookie == "" {
		p.cookie = rand.Text()
		p.put(cookieName, p.cookie, sessionFor)
	}
	h := hmac.New(sha256.New, []byte(p.cookie))
	h.Write([]byte("qlogd console form"))
	return hex.EncodeToString(h.Sum(nil))
}

// readForm reads the form of a POST, and refuses it without the right CSRF token.
func (p *page) readForm() error {
	limit := int64(maxStranger)
	if p.c.opts.Tokens == nil || p.session != nil {
		limit = maxForm
	}
	p.r.Body = http.MaxBytesReader(p.w, p.r.Body, limit)
	if err := p.r.ParseForm(); err != nil {
		return &failure{http.StatusBadRequest, "The form cannot be read", err.Error()}
	}
	if p.cookie == "" && p.r.URL.Path == "/ui/sign-in" {
		return nil // the first page may have set it for another path, see public
	}
	sent := p.r.PostForm.Get("csrf")
	if p.cookie == "" || !hmac.Equal([]byte(sent), []byte(p.CSRF())) {
		return &failure{http.StatusForbidden, "The form is not valid any more",
			"It was made for another session, or the browser did not send the cookie. Go back, " +
				"reload the page and send it again. Behind a proxy that changes the path, start " +
				"the node with --public-url."}
	}
	return nil
}

// signIn shows the form.
func (p *page) signIn() error {
	if p.c.opts.Tokens == nil || p.session != nil {
		return p.redirect(p.root)
	}
	return p.render(http.StatusOK, "sign-in", "Sign in", signInForm{Next: p.r.FormValue("next")})
}

type signInForm struct{ Next, Error string }

// signedIn answers the form.
func (p *page) signedIn() error {
	if p.c.opts.Tokens == nil {
		return p.redirect(p.root)
	}
	form := signInForm{Next: p.r.PostForm.Get("next")}
	refuse := func(status int, text string) error {
		form.Error = text
		return p.render(status, "sign-in", "Sign in", form)
	}
	if !p.c.allow(p.c.opts.Source(p.r)) {
		p.w.Header().Set("Retry-After", "10")
		return refuse(http.StatusTooManyRequests, "Too many attempts from your address. Wait a "+
			"moment and try again.")
	}
	token := strings.TrimSpace(p.r.PostForm.Get("token"))
	sum := sha256.Sum256([]byte(token))
	name := p.c.opts.Tokens.Name(sum)
	if name == "" {
		p.c.opts.Logger.Warn("console sign-in refused", "from", p.c.opts.Source(p.r).String())
		return refuse(http.StatusUnauthorized, "This token is not known here, has expired, or was "+
			"revoked.")
	}
	s := &session{name, sum, time.Now().Add(sessionFor)}
	p.put(cookieName, s.cookie(token), sessionFor)
	return p.redirect(p.root + within(form.Next))
}

// within returns a path within the console, "" for any other.
func within(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || strings.HasPrefix(next, "/") ||
		strings.ContainsAny(next, "\\:") || strings.Contains(next, "..") {
		return ""
	}
	return u.String()
}

// signOut ends the session in this browser.
func (p *page) signOut() error {
	p.put(cookieName, "", -time.Second)
	return p.redirect(p.root + "sign-in")
}

// put sets a cookie that only the console gets, and no script. A negative age deletes it.
func (p *page) put(name, value string, age time.Duration) {
	prefix, secure := p.published()
	http.SetCookie(p.w, &http.Cookie{
		Name: name, Value: value, Path: prefix + "/ui/", MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	})
}

// public returns the URL at which a proxy has published the page, nil if it came another way.
// Proxies may replace the Host; then the browser's Referer names it, on all but the first page.
func (p *page) public() *url.URL {
	var found *url.URL
	referer, err := url.Parse(p.r.Referer())
	for _, u := range p.c.public {
		switch {
		case err == nil && strings.HasPrefix(referer.String(), u.JoinPath("ui").String()+"/"):
			return u
		case found == nil && (u.Host == p.r.Host || err == nil && u.Host == referer.Host):
			found = u // of several of one host, the first page cannot know which it is
		}
	}
	return found
}

// published returns the path before /ui/ as the browser sees it, and whether it uses TLS.
func (p *page) published() (prefix string, secure bool) {
	secure = p.r.TLS != nil
	trusted := p.c.trusts(p.r)
	if trusted {
		secure = secure || strings.EqualFold(p.r.Header.Get("X-Forwarded-Proto"), "https")
	}
	if u := p.public(); u != nil {
		return strings.TrimSuffix(u.EscapedPath(), "/"), secure || u.Scheme == "https"
	}
	if forwarded := p.r.Header.Get("X-Forwarded-Prefix"); trusted && forwarded != "" &&
		isPrefix(forwarded) {
		return strings.TrimSuffix(forwarded, "/"), secure
	}
	// The guard has refused other origins, so the referer's path is that of a page of this node.
	if referer, err := url.Parse(p.r.Referer()); err == nil && referer.Host == p.r.Host {
		if before, _, ok := strings.Cut(referer.EscapedPath(), "/ui/"); ok && isPrefix(before) {
			return before, secure
		}
	}
	return "", secure
}

// isPrefix reports whether a header's value can be the path of a cookie.
func isPrefix(s string) bool {
	return len(s) < 256 && (s == "" || s[0] == '/') && !strings.ContainsAny(s, ";,\\ ") &&
		!strings.Contains(s, "//")
}

// trusts reports whether a request comes from a proxy whose headers are believed.
func (c *Console) trusts(r *http.Request) bool {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	for _, p := range c.opts.Proxies {
		if err == nil && p.Contains(addr.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// An address may try to sign in signInBurst times at once, and once more every signInEvery; that is
// kept for the newest signInKept addresses.
const (
	signInBurst = 10
	signInEvery = 10 * time.Second
	signInKept  = 10_000
)

// allow reports whether an address may try now. Networks of IPv6 count as one address.
func (c *Console) allow(addr netip.Addr) bool {
	if addr.Is6() {
		network, _ := addr.WithZone("").Prefix(64)
		addr = network.Addr()
	}
	return entry(c.attempts, addr, rate.NewLimiter(rate.Every(signInEvery), signInBurst)).Allow()
}

// newCache returns a cache of the newest entries, at least one.
func newCache[K comparable, V any](entries int) *lru.Cache[K, V] {
	c, _ := lru.New[K, V](entries) // an error: less than one
	return c
}

// entry returns the entry of a key, fresh if there was none.
func entry[K comparable, V any](c *lru.Cache[K, V], key K, fresh V) V {
	if known, ok, _ := c.PeekOrAdd(key, fresh); ok {
		return known
	}
	return fresh
}
