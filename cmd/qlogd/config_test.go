package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestExposed: what is open to strangers is told at each start, and only that.
func TestExposed(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string // of each warning: the listener, a colon, and some of the text
	}{
		{"", nil},
		{"--http-addr 10.0.0.1:7070", []string{"http-addr:without authentication"}},
		{"--http-addr 10.0.0.1:7070 --tls-cert c --tls-key k", []string{"http-addr:without authentication"}},
		{"--http-addr 10.0.0.1:7070 --auth-file a --raft-tls-cert c --raft-tls-key k --raft-tls-ca a", []string{"http-addr:in clear text"}},
		{"--http-addr 10.0.0.1:7070 --auth-file a --tls-cert c --tls-key k --raft-tls-cert c --raft-tls-key k --raft-tls-ca a", nil},
		{"--auth-file a", []string{"raft-addr:needs no token"}},
		{"--auth-file a --raft-tls-cert c --raft-tls-key k --raft-tls-ca a", nil},
		{"--auth-file a --raft-addr 10.0.0.1:7071", []string{"raft-addr:beyond this machine"}},
		{"--raft-addr 10.0.0.1:7071", []string{"raft-addr:pass for a node"}},
		{"--admin-addr 10.0.0.1:7072", []string{"admin-addr:memory"}},
		{"--admin-addr 127.0.0.1:7072", nil},
	} {
		cfg := &config{}
		fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		cfg.flags(fs)
		if err := fs.Parse(append(strings.Fields(c.args), "--insecure")); err != nil {
			t.Fatal(err)
		}
		if err := cfg.load(fs, func(name string) string { return map[string]string{"QLOGD_INSECURE": "1"}[name] }); err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		got := cfg.exposed()
		if !slices.EqualFunc(got, c.want, func(w warning, want string) bool {
			name, text, _ := strings.Cut(want, ":")
			return w.name == name && strings.Contains(w.text, text)
		}) {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

// TestReload: what the command line said holds when settings are read anew,
// lists too.
func TestReload(t *testing.T) {
	for _, args := range []string{
		"",
		"--log-level warn",
		"--bootstrap-expect 3 --join 10.0.0.1:7071,10.0.0.2:7071 --join 10.0.0.3:7071",
		"--join 10.0.0.1:7071 --history-retention 24h --auto-create-queues",
	} {
		a := &app{getenv: func(string) string { return "" }}
		c := &config{}
		fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		c.flags(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		typed := typedFlags(fs)
		if err := c.load(fs, a.getenv); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		again, err := a.reload(typed)
		if err != nil {
			t.Errorf("%s: read anew: %v", args, err)
			continue
		}
		if !slices.Equal(again.Join, c.Join) || again.LogLevel != c.LogLevel || again.BootstrapExpect != c.BootstrapExpect || again.HistoryRetention != c.HistoryRetention {
			t.Errorf("%s: read anew: %+v, want %+v", args, again, c)
		}
	}
}
