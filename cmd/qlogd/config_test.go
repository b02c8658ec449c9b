package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestExposed: a listener open to strangers is logged at each start, and no other.
func TestExposed(t *testing.T) {
	const tls = " --tls-cert c --tls-key k"
	const raftTLS = " --raft-tls-cert c --raft-tls-key k --raft-tls-ca a"
	env := map[string]string{"QLOGD_INSECURE": "1"}
	for _, c := range []struct {
		args string
		want []string // of each warning: the listener, a colon, and some of the text
	}{
		{"", nil},
		{"--http-addr 10.0.0.1:7070", []string{"http-addr:without authentication"}},
		{"--http-addr 10.0.0.1:7070" + tls, []string{"http-addr:without authentication"}},
		{"--http-addr 10.0.0.1:7070 --auth-file a" + raftTLS, []string{"http-addr:in clear text"}},
		{"--http-addr 10.0.0.1:7070 --auth-file a" + tls + raftTLS, nil},
		{"--auth-file a", nil}, // it accepts no other node
		{"--auth-file a" + raftTLS, nil},
		{"--auth-file a --raft-addr 10.0.0.1:7071", nil},
		{"--raft-addr 10.0.0.1:7071" + raftTLS, nil},
		{"--raft-addr 10.0.0.1:7071 --cluster-secret-file s", []string{"raft-addr:in clear text"}},
		{"--join 127.0.0.1:7081 --cluster-secret-file s --auth-file a", nil},
		{"--raft-addr 10.0.0.1:7071", []string{"raft-addr:pass for a node"}},
		{"--admin-addr 10.0.0.1:7072", []string{"admin-addr:memory"}},
		{"--admin-addr 127.0.0.1:7072", nil},
	} {
		a := &app{
			args:   append([]string{"serve", "--insecure"}, strings.Fields(c.args)...),
			getenv: func(name string) string { return env[name] },
		}
		cfg, err := a.loadConfig()
		require.NoError(t, err, "%s", c.args)
		if !slices.EqualFunc(cfg.warnings, c.want, func(w warning, want string) bool {
			name, text, _ := strings.Cut(want, ":")
			return w.name == name && strings.Contains(w.text, text)
		}) {
			t.Errorf("%s: %q, want %q", c.args, cfg.warnings, c.want)
		}
	}
}
