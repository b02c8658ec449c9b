package egress

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// MaxURL bounds a URL, in bytes.
const MaxURL = 2048

// CheckURL returns an *Error unless raw may be the address of a target, as far
// as that can be said without asking the network: what its names stand for is
// found out, and judged, each time that it is called (Client.Do). The text of
// the error says what is wrong with "the URL" and repeats no credentials.
func CheckURL(raw string, allowPrivate bool) error {
	_, err := parse(raw, allowPrivate)
	return err
}

func parse(raw string, allowPrivate bool) (*url.URL, error) {
	if raw == "" || len(raw) > MaxURL {
		return nil, refuse("must be an http or https URL of at most %d bytes", MaxURL)
	}
	for _, c := range []byte(raw) {
		if c <= ' ' || c >= 0x7f || c == '\\' {
			return nil, refuse("must not have spaces, backslashes, control or other characters than ASCII; write a name in punycode, all else with %%")
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, refuse("is no URL") // the error of url.Parse repeats it, with what credentials it has
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse("must begin with http:// or https://")
	case u.User != nil:
		return nil, refuse("must not have credentials; use a header")
	case u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return nil, refuse("has no host")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return nil, refuse("must not have a fragment: it would not be sent")
	}
	if p := u.Port(); p != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, refuse("has a port that is none")
		}
	}
	if err := checkHost(u.Hostname(), strings.HasPrefix(u.Host, "["), allowPrivate); err != nil {
		return nil, err
	}
	return u, nil
}

// localNames end the names that only this machine, this link or this cloud's
// machine knows.
var localNames = []string{
	"localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa", "home", "corp", "private",
}

func checkHost(host string, brackets, allowPrivate bool) error {
	if a, err := netip.ParseAddr(host); err == nil {
		if err := CheckAddr(a, allowPrivate); err != nil {
			return refuse("names an address that is refused: %v%s", err, hint(!allowPrivate && CheckAddr(a, true) == nil))
		}
		return nil
	}
	if brackets {
		return refuse("has an address in brackets that is none")
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	labels := strings.Split(name, ".")
	if len(name) > 253 {
		return refuse("names a host of more than 253 bytes")
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return refuse("names a host that can't be one")
		}
	}
	// 2130706433, 0x7f.1, 0177.0.0.1, 127.1: some resolvers take them for
	// addresses, and no top-level domain is a number.
	last := labels[len(labels)-1]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return refuse("names a host that ends in a number; write an address as four decimal numbers, or IPv6 in brackets")
	}
	if allowPrivate {
		return nil
	}
	if len(labels) == 1 {
		return refuse("names a host of this network: %.64q has no domain%s", name, hint(true))
	}
	for _, l := range localNames {
		if strings.HasSuffix(name, "."+l) {
			return refuse("names a host of this network: .%s%s", l, hint(true))
		}
	}
	return nil
}

// hint says what would help, where that would.
func hint(helps bool) string {
	if !helps {
		return ""
	}
	return " (private targets need serve --push-allow-private)"
}
