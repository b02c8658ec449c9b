package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestExposed: a listener open to strangers is logged at each start, and no other.
func TestExposed(t *testing.T) {
	const elsewhere = "10.0.0.1:7070"
	http := func(c *Config) { c.HTTPAddr = elsewhere }
	raft := func(c *Config) { c.RaftAddr = elsewhere }
	admin := func(c *Config) { c.AdminAddr = elsewhere }
	tls := func(c *Config) { c.TLSCert, c.TLSKey = "c", "k" }
	raftTLS := func(c *Config) { c.RaftTLSCert, c.RaftTLSKey, c.RaftTLSCA = "c", "k", "a" }
	auth := func(c *Config) { c.AuthFile = "a" }
	secret := func(c *Config) { c.ClusterSecretFile = "s" }
	join := func(c *Config) { c.Join = []string{"127.0.0.1:7081"} }
	for name, c := range map[string]struct {
		set  []with
		want []string // of each warning: the listener, a colon, and some of the text
	}{
		"local":                 {nil, nil},
		"http":                  {[]with{http}, []string{"http-addr:without authentication"}},
		"http, TLS":             {[]with{http, tls}, []string{"http-addr:without authentication"}},
		"http, tokens":          {[]with{http, auth, raftTLS}, []string{"http-addr:in clear text"}},
		"http, tokens, TLS":     {[]with{http, auth, tls, raftTLS}, nil},
		"tokens":                {[]with{auth}, nil}, // it accepts no other node
		"tokens, Raft TLS":      {[]with{auth, raftTLS}, nil},
		"tokens, raft":          {[]with{auth, raft}, nil},
		"raft, TLS":             {[]with{raft, raftTLS}, nil},
		"raft, secret":          {[]with{raft, secret}, []string{"raft-addr:in clear text"}},
		"join, secret, tokens":  {[]with{join, secret, auth}, nil},
		"raft":                  {[]with{raft}, []string{"raft-addr:pass for a node"}},
		"admin":                 {[]with{admin}, []string{"admin-addr:memory"}},
		"admin on this machine": {[]with{func(c *Config) { c.AdminAddr = "127.0.0.1:7072" }}, nil},
	} {
		cfg := testConfig("d", c.set...)
		cfg.Insecure, cfg.InsecureConfirmed = true, true
		require.NoError(t, cfg.Check(), "%s", name)
		if !slices.EqualFunc(cfg.warnings, c.want, func(w warning, want string) bool {
			listener, text, _ := strings.Cut(want, ":")
			return w.name == listener && strings.Contains(w.text, text)
		}) {
			t.Errorf("%s: %q, want %q", name, cfg.warnings, c.want)
		}
	}
}
