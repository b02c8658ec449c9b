package webhook

import (
	"errors"
	"net/netip"
	"strings"
)

// ParseNetwork reads an address or a network in CIDR form.
func ParseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, errors.New("must be an address such as 192.0.2.1 or a network such as 192.0.2.0/24")
	}
	if p != p.Masked() {
		return p, errors.New("has bits behind its network part; that network is " + p.Masked().String())
	}
	return p, nil
}

// Source returns the address that a request came from: the other end of its
// connection or, where that is a trusted proxy, the last address in
// X-Forwarded-For that is none. What stands before that could have been written
// by anybody.
func Source(remote netip.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	remote = remote.Unmap().WithZone("")
	if !within(remote, trusted) {
		return remote
	}
	hops := strings.Split(strings.Join(forwarded, ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop, err := parseHop(strings.TrimSpace(hops[i]))
		if err != nil {
			break // what the proxy wrote is no address: it is the last that is known
		}
		if remote = hop; !within(hop, trusted) {
			break
		}
	}
	return remote
}

// parseHop reads an address as proxies write it: with a port or not.
func parseHop(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		var p netip.AddrPort
		if p, err = netip.ParseAddrPort(text); err == nil {
			a = p.Addr()
		}
	}
	return a.Unmap().WithZone(""), err
}

func within(a netip.Addr, networks []netip.Prefix) bool {
	for _, p := range networks {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Allows reports whether a request may come from an address.
func (w *Webhook) Allows(a netip.Addr) bool {
	return len(w.networks) == 0 || within(a, w.networks)
}
