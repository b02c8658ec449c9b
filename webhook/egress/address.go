package egress

import (
	"fmt"
	"net/netip"
)

// network is a range of addresses that nobody on the internet has.
type network struct {
	prefix netip.Prefix
	what   string
	never  bool // not even where private targets are allowed
}

// networks are the special ranges of IANA's registries, and the few addresses
// in ordinary ranges at which clouds serve instances their credentials. The
// first that holds an address counts, so narrower ones stand before wider ones.
//
// What is there for every program on a machine and is nobody's server (this
// host by another name, metadata of clouds, groups of hosts) is refused with
// private targets allowed, too.
var networks = []network{
	never("0.0.0.0/8", "unspecified"),
	never("100.100.100.200/32", "metadata of a cloud"),
	never("168.63.129.16/32", "metadata of a cloud"),
	never("169.254.0.0/16", "link-local"),
	never("224.0.0.0/4", "multicast"),
	never("240.0.0.0/4", "reserved"),
	private("127.0.0.0/8", "loopback"),
	private("10.0.0.0/8", "private"),
	private("172.16.0.0/12", "private"),
	private("192.168.0.0/16", "private"),
	private("100.64.0.0/10", "shared by a provider's customers"),
	private("192.0.0.0/24", "reserved"),
	private("192.0.2.0/24", "for documentation"),
	private("198.51.100.0/24", "for documentation"),
	private("203.0.113.0/24", "for documentation"),
	private("192.88.99.0/24", "a relay of 6to4"),
	private("198.18.0.0/15", "for benchmarks"),

	never("::/128", "unspecified"),
	never("fd00:ec2::254/128", "metadata of a cloud"),
	never("fd20:ce::254/128", "metadata of a cloud"),
	never("fe80::/10", "link-local"),
	never("ff00::/8", "multicast"),
	private("::1/128", "loopback"),
	private("fc00::/7", "private"),
	private("fec0::/10", "private"),
	private("2001::/23", "reserved"), // benchmarks, ORCHID and the like; Teredo is taken apart before
	private("2001:db8::/32", "for documentation"),
	private("3fff::/20", "for documentation"),
}

// unicast is what IPv6 has given out to the public so far.
var unicast = netip.MustParsePrefix("2000::/3")

func never(prefix, what string) network {
	return network{netip.MustParsePrefix(prefix), what, true}
}

func private(prefix, what string) network {
	return network{netip.MustParsePrefix(prefix), what, false}
}

// CheckAddr returns an *Error unless what is sent to the address goes to a host
// on the internet or, with allowPrivate, to one of the private networks or to
// this machine. An address that carries an IPv4 address to some gateway (mapped,
// 6to4, NAT64, Teredo, ISATAP) is refused or, with allowPrivate, as good as the
// one that it carries.
func CheckAddr(a netip.Addr, allowPrivate bool) error {
	if !a.IsValid() {
		return refuse("it is no address")
	}
	if a.Zone() != "" {
		return refuse("%s has a zone", a)
	}
	if inner, how := embedded(a); how != "" {
		if !allowPrivate {
			return refuse("%s is %s", a, how)
		}
		if inner.IsValid() {
			if err := CheckAddr(inner, true); err != nil {
				return refuse("%s is %s: %v", a, how, err)
			}
		}
	}
	for i := range networks {
		if n := &networks[i]; n.prefix.Contains(a) {
			if allowPrivate && !n.never {
				return nil
			}
			return refuse("%s is %s", a, n.what)
		}
	}
	if a.Is6() && !unicast.Contains(a) {
		if allowPrivate {
			return nil
		}
		return refuse("%s is reserved", a)
	}
	return nil
}

// embedded takes an IPv6 address apart that stands for an IPv4 one, and says
// how it does; "" where it is none.
func embedded(a netip.Addr) (inner netip.Addr, how string) {
	if a.Is4() {
		return inner, ""
	}
	b := a.As16()
	v4 := func(at int) netip.Addr { return netip.AddrFrom4([4]byte(b[at : at+4])) }
	zero := func(from, to int) bool {
		for _, c := range b[from:to] {
			if c != 0 {
				return false
			}
		}
		return true
	}
	switch {
	case a.Is4In6():
		return a.Unmap(), "an IPv4 address mapped to IPv6"
	case zero(0, 12) && !zero(12, 15): // not :: and ::1
		return v4(12), "an IPv4-compatible address"
	case zero(0, 8) && b[8] == 0xff && b[9] == 0xff && b[10] == 0 && b[11] == 0:
		return v4(12), "an IPv4-translated address"
	case b[0] == 0x20 && b[1] == 0x02:
		return v4(2), "an address of 6to4"
	case b[0] == 0 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b && zero(4, 12):
		return v4(12), "an address of NAT64"
	case b[0] == 0 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b && b[4] == 0 && b[5] == 1:
		return v4(12), "an address of a local NAT64"
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0:
		for i := 12; i < 16; i++ {
			b[i] = ^b[i] // Teredo turns its client's address over
		}
		return v4(12), "an address of Teredo"
	case b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe:
		return v4(12), "an address of ISATAP"
	}
	return inner, ""
}

// Error says why nothing is sent to an address, whatever the network would do:
// trying again changes nothing.
type Error struct{ why string }

func (e *Error) Error() string { return e.why }

func refuse(format string, args ...any) *Error { return &Error{fmt.Sprintf(format, args...)} }
