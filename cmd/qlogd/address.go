package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/qlogd/qlogd/event"
)

// isLoopback reports whether only this machine reaches an address. A name is
// taken at its word only if it is localhost: others can change.
func isLoopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("%.64q: wants HOST:PORT", addr)
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback(), nil
}

// hostPort refuses what another node could not dial.
func hostPort(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if n, perr := strconv.Atoi(port); err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%.64q: wants HOST:PORT", addr)
	}
	return nil
}

// unspecified reports whether an address stands for all of the host's.
func unspecified(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// defaultNodeID makes a node's name from the host's.
func defaultNodeID() string {
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	if event.ValidNode(host) {
		return host
	}
	return "n1"
}
