package api

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/qlogd/qlogd/event"
)

// Guard keeps web pages from reaching a listener through the browser of a user who can reach it.
// It rejects cross-origin requests of browsers, and a Host that an attacker could own (DNS
// rebinding: a name that points to this machine makes the attacker's page same-origin).
// The zero value trusts no other origin. Clients other than browsers only need an accepted Host.
type Guard struct {
	Origins []string // whose pages may do everything, as ParsePublicURL returns them
	Hosts   []string // names of the node, besides those that only a local network resolves
	AnyHost bool     // requests need a token, which a page under another name does not have
	// Exempt reports whether requests for a path may have any origin, and any Host. nil: none.
	Exempt func(path string) (origin, host bool)
	// Refuse answers a rejected request.
	Refuse func(http.ResponseWriter, *http.Request, *event.Problem)
}

// wrap returns a handler that calls h for requests that Guard does not reject. Bodies must arrive
// within bodyTimeout.
func (g *Guard) wrap(h http.Handler) http.Handler {
	cross, hosts := http.NewCrossOriginProtection(), map[string]bool{}
	for _, o := range g.Origins {
		if err := cross.AddTrustedOrigin(o); err != nil {
			panic("api: " + err.Error()) // none of ParsePublicURL's
		}
	}
	for _, name := range g.Hosts {
		hosts[normal(name)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// Needed even if no handler reads the body: net/http drains it afterwards.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		}
		if r.TransferEncoding != nil {
			// net/http ignores a Content-Length next to Transfer-Encoding, but a proxy in front may
			// have used it to delimit this request: the bytes that follow could be another client's
			// (request smuggling, RFC 9112, 6.1).
			w.Header().Set("Connection", "close")
		}
		anyOrigin, anyHost := false, false
		if g.Exempt != nil {
			anyOrigin, anyHost = g.Exempt(r.URL.Path)
		}
		switch {
		case !anyOrigin && crosses(cross, r):
			g.Refuse(w, r, event.Problemf(codeCrossOrigin, "", "a browser sent this for a page of "+
				"another origin (Sec-Fetch-Site %s, Origin %s); if the node is published there, "+
				"start it with --public-url URL",
				echo(r.Header.Get("Sec-Fetch-Site")), echo(r.Header.Get("Origin"))))
		case !anyHost && !g.AnyHost && !answersTo(r.Host, hosts):
			g.Refuse(w, r, event.Problemf(codeMisdirected, "Host", "this node does not "+
				"answer to the host %s; if that is its name, start it with --allow-host NAME",
				echo(r.Host)))
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// crosses reports whether a browser sent a request for a page of another origin. net/http allows
// reads, because the page cannot see the answer. But it can time them, and some are expensive
// (streams, time travel, profiles). So only links that users follow are allowed.
func crosses(cross *http.CrossOriginProtection, r *http.Request) bool {
	if r.Header["Sec-Fetch-Site"] == nil && r.Header["Origin"] == nil {
		return false // no browser
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if reads && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" {
		return false
	}
	asWrite := http.Request{Method: http.MethodPost, Host: r.Host, URL: r.URL, Header: r.Header}
	return cross.Check(&asWrite) != nil
}

// answersTo reports whether a Host is an address, a name that is not in the public DNS, or one of
// names. Browsers always send one, so a request without it is not a page's.
func answersTo(host string, names map[string]bool) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if _, err := netip.ParseAddr(name); err == nil || host == "" {
		return true
	}
	name = normal(name)
	last := name[strings.LastIndexByte(name, '.')+1:]
	return isHostName(name) && (last == name || localDomains[last] || names[name])
}

// localDomains are top-level domains that are reserved for local networks (.cluster.local is in
// one), or that nobody can register.
var localDomains = map[string]bool{"localhost": true, "local": true, "internal": true, "svc": true}

// normal returns a host name in the form used for comparison: lower case, without the trailing dot.
func normal(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// isHostName reports whether a normal name consists of labels. Containers' names may have a _.
func isHostName(name string) bool {
	invalid := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || strings.ContainsFunc(label, invalid) {
			return false
		}
	}
	return true
}

// ParseHost parses a host name or address for Guard.Hosts.
func ParseHost(text string) (string, error) {
	name := normal(text)
	if _, err := netip.ParseAddr(name); err != nil && !isHostName(name) {
		return "", errors.New("must be the name of a host, such as ops.example.com, " +
			"without scheme, port and path")
	}
	return name, nil
}

// ParsePublicURL returns the origin and the host of the URL at which a proxy publishes the node.
func ParsePublicURL(text string) (origin, host string, err error) {
	wrong := errors.New("must be a URL such as https://ops.example.com/qlogd/: " +
		"http or https, a host, no user, no query, no fragment")
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil ||
		u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#") {
		return "", "", wrong
	}
	if host, err = ParseHost(u.Hostname()); err != nil {
		return "", "", wrong
	}
	if _, err = net.LookupPort("tcp", u.Port()); err != nil {
		return "", "", wrong
	}
	// As a browser writes it: without the scheme's own port.
	standard := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	name := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(u.Host), standard), ":")
	return u.Scheme + "://" + name, host, nil
}
