package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// config is all that can be set of a server. Each field is a flag; the same
// name is its key in the file and, in capitals with QLOGD_ before it, its
// environment variable. Flags beat the environment, which beats the file.
type config struct {
	DataDir  string
	HTTPAddr string
	RaftAddr string
	NodeID   string

	// Where others reach this node, if not at the addresses it listens at.
	RaftAdvertise string
	HTTPAdvertise string

	BootstrapExpect int
	Join            []string

	AutoCreateQueues bool
	PushAllowPrivate bool
	HistoryRetention time.Duration
	LogSegmentBytes  int64
	MaxPayloadBytes  int64
	MaxRequestBytes  int64
	Archive          string
	ArchiveInterval  time.Duration
	CheckpointEvery  uint64
	CheckpointAge    time.Duration

	LogLevel  string
	LogFormat string
	AdminAddr string
	Insecure  bool

	AuthFile    string
	OpenMetrics bool
	TLSCert     string
	TLSKey      string
	RaftTLSCert string
	RaftTLSKey  string
	RaftTLSCA   string

	SecretsDir     string
	TrustedProxies []string

	// file is where the settings came from; insecureEnv is the second of the
	// two words that it takes to serve strangers without authentication.
	file        string
	insecureEnv bool
}

// flags declares the settings and their defaults.
func (c *config) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", "./qlogd-data", "where everything durable lives; made if it is missing")
	fs.StringVar(&c.HTTPAddr, "http-addr", "127.0.0.1:7070", "address of the HTTP API; port 0 picks a free one")
	fs.StringVar(&c.RaftAddr, "raft-addr", "127.0.0.1:7071", "address for the other nodes; port 0 picks a free one")
	fs.StringVar(&c.NodeID, "node-id", "", "name of this node, kept at the first start (default: the host's name)")
	fs.StringVar(&c.RaftAdvertise, "raft-advertise", "", "address at which the other nodes reach raft-addr, HOST:PORT (default: raft-addr)")
	fs.StringVar(&c.HTTPAdvertise, "http-advertise", "", "address at which others reach http-addr, HOST:PORT (default: http-addr)")
	fs.IntVar(&c.BootstrapExpect, "bootstrap-expect", 1, "how many nodes form the cluster at its first start; the same on each")
	fs.StringSliceVar(&c.Join, "join", nil, "raft addresses of the cluster's nodes; alone: join the cluster that is found there")
	fs.BoolVar(&c.AutoCreateQueues, "auto-create-queues", false, "produce to a missing queue makes it")
	fs.BoolVar(&c.PushAllowPrivate, "push-allow-private", false, "push, and webhooks with a target, reach this machine and private networks too")
	fs.DurationVar(&c.HistoryRetention, "history-retention", 168*time.Hour, "how long history is kept; 0 for ever")
	fs.Int64Var(&c.LogSegmentBytes, "log-segment-bytes", 64<<20, "size of the event log's segments; of a new data directory only")
	fs.Int64Var(&c.MaxPayloadBytes, "max-payload-bytes", 1<<20, "largest payload of one message")
	fs.Int64Var(&c.MaxRequestBytes, "max-request-bytes", 16<<20, "largest body of one request")
	fs.StringVar(&c.Archive, "archive", "", "keep sealed segments of the log in this directory, the same on all nodes; retention waits for it")
	fs.DurationVar(&c.ArchiveInterval, "archive-interval", 30*time.Second, "how often it is looked whether there is something to archive")
	fs.Uint64Var(&c.CheckpointEvery, "checkpoint-entries", 100_000, "take a checkpoint after so many entries")
	fs.DurationVar(&c.CheckpointAge, "checkpoint-interval", 10*time.Minute, "take a checkpoint at this interval, if anything happened")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error; read anew on SIGHUP")
	fs.StringVar(&c.LogFormat, "log-format", "text", "text or json")
	fs.StringVar(&c.AdminAddr, "admin-addr", "", "address for pprof; none if empty")
	fs.BoolVar(&c.Insecure, "insecure", false, "serve beyond loopback without authentication; QLOGD_INSECURE=1 must say so too")
	fs.StringVar(&c.AuthFile, "auth-file", "", "YAML file of tokens and their rights; read anew on SIGHUP (default: no authentication)")
	fs.BoolVar(&c.OpenMetrics, "open-metrics", false, "with auth-file: /metrics needs no token")
	fs.StringVar(&c.TLSCert, "tls-cert", "", "PEM certificate of the HTTP API; read anew when it changes")
	fs.StringVar(&c.TLSKey, "tls-key", "", "its PEM key")
	fs.StringVar(&c.RaftTLSCert, "raft-tls-cert", "", "PEM certificate of this node for the other nodes; read anew when it changes")
	fs.StringVar(&c.RaftTLSKey, "raft-tls-key", "", "its PEM key")
	fs.StringVar(&c.RaftTLSCA, "raft-tls-ca", "", "PEM certificates of the authority that signs the nodes' certificates")
	fs.StringVar(&c.SecretsDir, "secrets-dir", "", "folder of files with webhooks' secrets (secret_file); they are read again when they change")
	fs.StringSliceVar(&c.TrustedProxies, "trusted-proxies", nil, "addresses and networks (CIDR) of proxies whose X-Forwarded-For is believed")
	fs.StringVar(&c.file, "config", "", "read settings from this YAML file")
}

// load fills in what the command line left open, from the environment and then
// from the file, and checks the whole.
func (c *config) load(fs *pflag.FlagSet, getenv func(string) string) error {
	typed := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { typed[f.Name] = true })
	c.insecureEnv = truth(getenv("QLOGD_INSECURE"))

	// The environment first, for QLOGD_CONFIG names the file.
	var envErr error
	fs.VisitAll(func(f *pflag.Flag) {
		name := envName(f.Name)
		v := getenv(name)
		// insecure is told twice on purpose: one does not stand in for the other.
		if v == "" || typed[f.Name] || f.Name == "insecure" || f.Name == "help" || envErr != nil {
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			envErr = usagef("%s: %w", name, flagCause(err))
		}
		typed[f.Name] = true
	})
	if envErr != nil {
		return envErr
	}
	if c.file != "" {
		if err := c.readFile(fs, typed); err != nil {
			return err
		}
	}
	return c.check()
}

// readFile sets what neither flag nor environment has set. A key that is no
// setting, or a value that is none, is an error with its line.
func (c *config) readFile(fs *pflag.FlagSet, typed map[string]bool) error {
	b, err := os.ReadFile(c.file)
	if err != nil {
		return usagef("config: %w", err)
	}
	bad := func(n *yaml.Node, format string, args ...any) error {
		return usagef("%s:%d: %w", c.file, n.Line, fmt.Errorf(format, args...))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return usagef("%s: %w", c.file, err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return bad(root, "the file must be a list of settings such as \"data-dir: ./qlogd-data\"")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		f := fs.Lookup(key.Value)
		switch {
		case f == nil || f.Name == "config" || f.Name == "help":
			return bad(key, "unknown setting %.64q", key.Value)
		case seen[key.Value]:
			return bad(key, "%s is set twice", key.Value)
		}
		seen[key.Value] = true
		s := value.Value
		switch value.Kind {
		case yaml.ScalarNode:
		case yaml.SequenceNode:
			if f.Value.Type() != "stringSlice" {
				return bad(value, "%s takes one value", key.Value)
			}
			var items []string
			for _, n := range value.Content {
				items = append(items, n.Value)
			}
			s = strings.Join(items, ",")
		default:
			return bad(value, "%s takes one value", key.Value)
		}
		if value.Tag == "!!null" || typed[f.Name] {
			continue
		}
		if err := fs.Set(f.Name, s); err != nil {
			return bad(value, "%s: %w", key.Value, flagCause(err))
		}
	}
	return nil
}

// check refuses what can't work, before anything is touched.
func (c *config) check() error {
	if c.BootstrapExpect < 1 {
		return usagef("bootstrap-expect must be at least 1")
	}
	if c.BootstrapExpect > 1 && len(c.Join) == 0 {
		return usagef("bootstrap-expect %d needs join: the raft addresses of the %d nodes, the same list on each", c.BootstrapExpect, c.BootstrapExpect)
	}
	for _, a := range c.Join {
		if err := hostPort(a); err != nil {
			return usagef("join: %w", err)
		}
	}
	if err := c.checkTLS(); err != nil {
		return err
	}
	if c.DataDir == "" {
		return usagef("data-dir must not be empty")
	}
	if _, err := parseLevel(c.LogLevel); err != nil {
		return err
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return usagef("log-format must be text or json, not %.64q", c.LogFormat)
	}
	if c.HistoryRetention < 0 {
		return usagef("history-retention must not be negative")
	}
	if c.LogSegmentBytes < 64<<10 || c.LogSegmentBytes > 4<<30 {
		return usagef("log-segment-bytes must be from %d to %d", 64<<10, 4<<30)
	}
	if c.MaxPayloadBytes < 1 || c.MaxRequestBytes < c.MaxPayloadBytes {
		return usagef("max-payload-bytes must be at least 1, max-request-bytes at least as much")
	}
	if c.MaxRequestBytes > 256<<20 {
		return usagef("max-request-bytes must be at most %d", 256<<20)
	}
	if c.CheckpointEvery < 1 || c.CheckpointAge < time.Second {
		return usagef("checkpoint-entries must be at least 1, checkpoint-interval at least 1s")
	}
	if c.Archive != "" {
		if _, err := archive.NewStore(c.Archive); err != nil {
			return usagef("%w", err)
		}
	}
	if c.ArchiveInterval < 100*time.Millisecond {
		return usagef("archive-interval must be at least 100ms")
	}
	if _, err := c.proxies(); err != nil {
		return err
	}
	if c.NodeID != "" && !event.ValidNode(c.NodeID) {
		return usagef("node-id must match %s", event.NodeNames)
	}
	return c.checkAddresses()
}

// alone reports whether a new directory is to be a cluster of its own.
func (c *config) alone() bool { return c.BootstrapExpect == 1 && len(c.Join) == 0 }

// proxies are the networks of trusted-proxies.
func (c *config) proxies() (out []netip.Prefix, err error) {
	for _, text := range c.TrustedProxies {
		p, err := webhook.ParseNetwork(strings.TrimSpace(text))
		if err != nil {
			return nil, usagef("trusted-proxies: %.64q %w", text, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// checkTLS refuses halves.
func (c *config) checkTLS() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return usagef("tls-cert and tls-key belong together")
	}
	if n := len(c.RaftTLSCert) * len(c.RaftTLSKey) * len(c.RaftTLSCA); n == 0 && c.RaftTLSCert+c.RaftTLSKey+c.RaftTLSCA != "" {
		return usagef("raft-tls-cert, raft-tls-key and raft-tls-ca belong together: the nodes know each other by certificates of one authority")
	}
	return nil
}

// listeners are the addresses that are listened at, each with what keeps
// strangers from it.
func (c *config) listeners() []listener {
	return []listener{
		{"http-addr", c.HTTPAddr, c.HTTPAdvertise, c.AuthFile != "", "authentication (auth-file)", "whoever reaches it can read and change everything"},
		{"raft-addr", c.RaftAddr, c.RaftAdvertise, c.RaftTLSCert != "", "TLS (raft-tls-cert, raft-tls-key, raft-tls-ca)", "whoever reaches it can pass for a node of the cluster, and change everything"},
		{"admin-addr", c.AdminAddr, "", false, "authentication", "whoever reaches it can read this process's memory"},
	}
}

type listener struct {
	name, addr, advertise string
	guarded               bool
	guard, danger         string
}

func (c *config) checkAddresses() error {
	for _, l := range c.listeners() {
		if l.addr == "" && l.name == "admin-addr" {
			continue
		}
		loopback, err := isLoopback(l.addr)
		if err != nil {
			return usagef("%s: %w", l.name, err)
		}
		if !loopback && !l.guarded && (!c.Insecure || !c.insecureEnv) {
			return usagef("%s %s is not a loopback address and has no %s: %s. "+
				"If that is meant, say so twice: --insecure and QLOGD_INSECURE=1", l.name, l.addr, l.guard, l.danger)
		}
		advertised := l.addr
		if l.advertise != "" {
			advertised = l.advertise
			if err := hostPort(l.advertise); err != nil {
				return usagef("%s: %w", strings.Replace(l.name, "addr", "advertise", 1), err)
			}
		}
		if l.name == "raft-addr" && unspecified(advertised) {
			return usagef("raft-addr %s is every address of this host; say with raft-advertise at which one the other nodes reach it", l.addr)
		}
	}
	return nil
}

// warning is what an operator should know of how a listener is reached.
type warning struct{ name, addr, text string }

// exposed lists what is open to strangers, as far as that was not refused: it
// may be meant, and is told at each start.
func (c *config) exposed() (out []warning) {
	for _, l := range c.listeners() {
		loopback, err := isLoopback(l.addr)
		if l.addr == "" || err != nil {
			continue
		}
		text := ""
		switch {
		case !loopback && !l.guarded:
			text = "served beyond this machine without " + l.guard + ": " + l.danger
		case !loopback && l.name == "http-addr" && c.TLSCert == "":
			text = "served beyond this machine without TLS (tls-cert, tls-key): tokens and messages go over the network in clear text"
		case loopback && l.name == "raft-addr" && c.AuthFile != "" && !l.guarded:
			text = "the port for nodes has no TLS (raft-tls-cert, raft-tls-key, raft-tls-ca): whoever is on this machine can pass for a node there, and needs no token of auth-file"
		}
		if text != "" {
			out = append(out, warning{l.name, l.addr, text})
		}
	}
	return out
}

func envName(flag string) string {
	return "QLOGD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func truth(s string) bool { return s == "1" || s == "true" || s == "yes" }

// flagCause takes pflag's own preface off an error.
func flagCause(err error) error {
	var v *pflag.InvalidValueError
	if errors.As(err, &v) {
		return fmt.Errorf("%.64q: %w", v.GetValue(), v.Unwrap())
	}
	return err
}

func parseLevel(s string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(s)); err != nil {
		return 0, usagef("log-level must be debug, info, warn or error, not %.64q", s)
	}
	return l, nil
}

func (a *app) configCmd() *cobra.Command {
	c := &config{}
	check := &cobra.Command{
		Use:   "check",
		Short: "Check the server's settings without starting it",
		Long:  "Reads flags, environment and file as serve does, and tells the first thing that is wrong, with its line.",
		Example: `  qlogd config check --config qlogd.yaml
  QLOGD_HTTP_ADDR=127.0.0.1:8080 qlogd config check`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.load(cmd.Flags(), a.getenv); err != nil {
				return err
			}
			out := map[string]string{}
			var rows [][]any
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Name != "help" && f.Name != "output" && f.Name != "config" {
					out[f.Name] = f.Value.String()
					rows = append(rows, []any{f.Name, f.Value.String()})
				}
			})
			if a.output == "json" {
				return a.json(out)
			}
			return a.table([]string{"setting", "value"}, rows)
		},
	}
	c.flags(check.Flags())
	a.outputFlag(check)
	return group(&cobra.Command{
		Use:     "config",
		Short:   "Check the server's settings",
		Example: "  qlogd config check --config qlogd.yaml",
	}, check)
}
