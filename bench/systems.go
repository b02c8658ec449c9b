package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/bench/limits"
	"github.com/qlogd/qlogd/bench/peers"
	"github.com/qlogd/qlogd/bench/qlogd"
	"github.com/qlogd/qlogd/bench/system"
)

// systemNamed returns a system to measure: qlogd-3, qlogd-1-plain, or one of the
// others. qlogd-3@PATH is another build of qlogd: before and after side by side.
func systemNamed(name, bin string) (system.System, error) {
	s := &qlogd.System{Options: qlogd.Options{Bin: bin}}
	if rest, ok := strings.CutPrefix(name, "qlogd-"); ok {
		if kind, path, other := strings.Cut(rest, "@"); other {
			rest, s.Bin, s.Label = kind, path, name
		}
		rest, s.Plain = strings.CutSuffix(rest, "-plain")
		if _, err := fmt.Sscan(rest, &s.Nodes); err == nil && s.Nodes > 0 {
			return s, nil
		}
	}
	for _, o := range others() {
		if o.Name() == name {
			return o, nil
		}
	}
	names := []string{"qlogd-1", "qlogd-3", "qlogd-1-plain", "qlogd-3-plain"}
	for _, o := range others() {
		names = append(names, o.Name())
	}
	slices.Sort(names)
	return nil, fmt.Errorf("no system %q; there are %s", name, strings.Join(names, " "))
}

// others are the systems and limits that qlogd is compared with.
func others() []system.System { return append(peers.All(), limits.All()...) }

// version returns a system's version, "" if it does not report one.
func version(s system.System) string {
	if v, ok := s.(interface{ Version() string }); ok {
		return v.Version()
	}
	return ""
}
