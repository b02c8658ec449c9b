package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
		return p, errors.New(
			"must be an address such as 192.0.2.1 or a network such as 192.0.2.0/24")
	}
	if p != p.Masked() {
		return p, fmt.Errorf("has bits behind its network part; that network is %s", p.Masked())
	}
	return p, nil
}

// Source returns the address that a request came from: the other end of its connection or, if that
// is a trusted proxy, the last address in X-Forwarded-For that is none. Anyone could have written
// what is before that.
func Source(remote netip.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	remote = remote.Unmap().WithZone("")
	hops := strings.Split(strings.Join(forwarded, ","), ",")
	for i := len(hops) - 1; i >= 0 && within(remote, trusted); i-- {
		hop, err := parseHop(strings.TrimSpace(hops[i]))
		if err != nil {
			break // no address: the one before is the last that is known
		}
		remote = hop
	}
	return remote
}

// parseHop reads an address as proxies write it: with a port or without.
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
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Allows reports whether a request may come from an address.
func (w *Webhook) Allows(a netip.Addr) bool {
	return len(w.networks) == 0 || within(a, w.networks)
}
