package server

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/background/verify"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/webhook"
)

// Config holds the settings of a node. Each field is a flag of qlogd serve, whose help describes
// it, unless its tag says otherwise.
type Config struct {
	DataDir, NodeID              string
	WitnessFile                  string
	AcceptOlderData              bool
	HTTPAddr, RaftAddr           string
	HTTPAdvertise, RaftAdvertise string // where others reach this node, if not at these

	BootstrapExpect int
	MaxQueues       int
	Join            []string

	AutoCreateQueues, PushAllowPrivate  bool
	HistoryRetention                    time.Duration
	LogSegmentBytes                     int64
	MaxPayloadBytes, MaxRequestBytes    int64
	Archive                             string
	ArchiveInterval, CheckpointInterval time.Duration
	CheckpointEntries                   uint64
	DiskTimeout                         time.Duration
	ScrubRate                           int64

	AdminAddr             string
	AuthFile, SecretsDir  string
	Insecure, OpenMetrics bool
	NoConsole             bool
	TLSCert, TLSKey       string
	RaftTLSCert           string
	RaftTLSKey            string
	RaftTLSCA             string `flag:"raft-tls-ca"`
	ClusterSecretFile     string
	TrustedProxies        []string
	AllowHost, PublicURL  []string

	InsecureConfirmed bool                `flag:"-"` // without it Insecure has no effect
	Admin             http.Handler        `flag:"-"` // what AdminAddr serves
	Getenv            func(string) string `flag:"-"` // secrets, and where spans are exported to
	Version, Commit   string              `flag:"-"` // of the program

	// Read by Check.
	proxies  []netip.Prefix
	hosts    []string // names of this node, for api.Guard
	origins  []string // whose pages are trusted
	warnings []warning

	verifyRate int64 // bytes a second; tests lower it
}

// DefaultConfig returns the settings of a node without any flags, but for its data directory.
func DefaultConfig() Config {
	return Config{
		HTTPAddr: "127.0.0.1:7070", RaftAddr: "127.0.0.1:7071",
		BootstrapExpect: 1, HistoryRetention: 168 * time.Hour, LogSegmentBytes: 64 << 20,
		MaxPayloadBytes: 1 << 20, MaxRequestBytes: 16 << 20, ArchiveInterval: 30 * time.Second,
		MaxQueues: 100_000, CheckpointEntries: 100_000, CheckpointInterval: 10 * time.Minute,
		ScrubRate: 16 << 20, DiskTimeout: 30 * time.Second,
		Getenv: os.Getenv, verifyRate: verify.Rate,
	}
}

// Check refuses settings that cannot work. It touches nothing on disk. Start calls it, too.
func (c *Config) Check() error {
	c.proxies, c.hosts, c.origins, c.warnings = nil, nil, nil, nil
	noRaftTLS := c.RaftTLSCert == ""
	for _, r := range []struct {
		bad  bool
		text string
	}{
		{c.BootstrapExpect < 1, "bootstrap-expect must be at least 1"},
		{c.BootstrapExpect > 1 && len(c.Join) == 0, fmt.Sprintf("bootstrap-expect %d needs join: "+
			"the raft addresses of the %[1]d nodes, the same list on each", c.BootstrapExpect)},
		{(c.TLSCert == "") != (c.TLSKey == ""), "tls-cert and tls-key belong together"},
		{(c.RaftTLSKey == "") != noRaftTLS || (c.RaftTLSCA == "") != noRaftTLS,
			"raft-tls-cert, raft-tls-key and raft-tls-ca belong together: " +
				"the nodes know each other by certificates of one authority"},
		{c.closed() && !c.alone(), "with auth-file, joining or forming a cluster needs " + nodeAuth +
			": raft-addr does not check tokens"},
		{c.DataDir == "", "data-dir must not be empty"},
		{c.HistoryRetention < 0, "history-retention must not be negative"},
		{c.LogSegmentBytes < 64<<10 || c.LogSegmentBytes > 4<<30,
			fmt.Sprintf("log-segment-bytes must be from %d to %d", 64<<10, 4<<30)},
		{c.MaxPayloadBytes < 1 || c.MaxRequestBytes < c.MaxPayloadBytes,
			"max-payload-bytes must be at least 1, max-request-bytes at least as much"},
		{c.MaxRequestBytes > 256<<20, fmt.Sprintf("max-request-bytes must be at most %d", 256<<20)},
		{c.MaxQueues < 1, "max-queues must be at least 1"},
		{c.CheckpointEntries < 1 || c.CheckpointInterval < time.Second,
			"checkpoint-entries must be at least 1, checkpoint-interval at least 1s"},
		{c.DiskTimeout <= watchdog.StallAfter, fmt.Sprintf("disk-timeout must be more than %v, "+
			"after which another node is elected", watchdog.StallAfter)},
		{c.ScrubRate < 0 || c.ScrubRate > 0 && c.ScrubRate < 64<<10,
			fmt.Sprintf("scrub-rate must be 0 or at least %d bytes a second", 64<<10)},
		{c.ArchiveInterval < 100*time.Millisecond, "archive-interval must be at least 100ms"},
		{c.Archive != "" && filepath.Clean(c.Archive) == filepath.Clean(c.DataDir),
			"archive must not be the data-dir: it is a copy for when that is lost"},
		{c.NodeID != "" && !event.ValidNode(c.NodeID), "node-id must match " + event.NodeNames},
	} {
		if r.bad {
			return settingsf("%s", r.text)
		}
	}
	for _, a := range c.Join {
		if err := hostPort(a); err != nil {
			return settingsf("join: %w", err)
		}
	}
	if info, err := os.Stat(c.WitnessFile); err == nil && !info.Mode().IsRegular() {
		return settingsf("witness-file: %s must be a regular file", c.WitnessFile)
	}
	if c.Archive != "" {
		if err := archive.CheckDir(c.Archive); err != nil {
			return settingsf("%w", err)
		}
	}
	for _, text := range c.TrustedProxies {
		p, err := webhook.ParseNetwork(strings.TrimSpace(text))
		if err != nil {
			return settingsf("trusted-proxies: %.64q %w", text, err)
		}
		c.proxies = append(c.proxies, p)
	}
	for _, text := range c.AllowHost {
		host, err := api.ParseHost(strings.TrimSpace(text))
		if err != nil {
			return settingsf("allow-host %.64q: %w", text, err)
		}
		c.hosts = append(c.hosts, host)
	}
	for _, text := range c.PublicURL {
		origin, host, err := api.ParsePublicURL(strings.TrimSpace(text))
		if err != nil {
			return settingsf("public-url %.64q: %w", text, err)
		}
		c.origins, c.hosts = append(c.origins, origin), append(c.hosts, host)
	}
	return c.checkAddresses()
}

// witnessFile is where the data directory's high-water mark is kept.
func (c *Config) witnessFile() string {
	return cmp.Or(c.WitnessFile, datadir.Path(c.DataDir, witness.FileName))
}

// alone reports whether a new directory becomes a cluster of its own.
func (c *Config) alone() bool { return c.BootstrapExpect == 1 && len(c.Join) == 0 }

// nodeAuth lists the ways in which nodes may authenticate each other.
const nodeAuth = "Raft TLS (raft-tls-cert, raft-tls-key, raft-tls-ca) or " +
	"a shared secret (cluster-secret-file)"

// closed reports whether the node refuses all connections of other nodes: clients need tokens, and
// nodes have nothing to authenticate each other by.
func (c *Config) closed() bool {
	return c.AuthFile != "" && c.RaftTLSCert == "" && c.ClusterSecretFile == ""
}

// warning is a danger that the operator should know of.
type warning struct{ name, addr, text string }

// checkAddresses checks the addresses that the server listens on, and warns of those that are
// open to strangers and not refused: it may be intended, and is logged at each start.
func (c *Config) checkAddresses() error {
	for _, l := range []struct {
		name, addr, advertise string
		guarded               bool
		guard, danger         string
	}{
		{"http-addr", c.HTTPAddr, c.HTTPAdvertise, c.AuthFile != "", "authentication (auth-file)",
			"anyone who reaches it can read and change everything"},
		{"raft-addr", c.RaftAddr, c.RaftAdvertise,
			c.RaftTLSCert != "" || c.ClusterSecretFile != "" || c.closed(), nodeAuth,
			"anyone who reaches it can pass for a node of the cluster, and change everything"},
		{"admin-addr", cmp.Or(c.AdminAddr, "localhost:0"), "", false, "authentication",
			"anyone who reaches it can read this process's memory"},
	} {
		host, _, err := net.SplitHostPort(l.addr)
		if err != nil {
			return settingsf("%s: %.64q must be HOST:PORT", l.name, l.addr)
		}
		// Whether only this machine reaches it. Of names only localhost counts: others can change.
		ip, _ := netip.ParseAddr(host)
		loopback, text := host == "localhost" || ip.IsLoopback(), ""
		switch {
		case !loopback && !l.guarded && (!c.Insecure || !c.InsecureConfirmed):
			return settingsf("%s %s is not a loopback address and has no %s: %s. "+
				"If that is intended, confirm it twice: --insecure and QLOGD_INSECURE=1",
				l.name, l.addr, l.guard, l.danger)
		case !loopback && !l.guarded:
			text = "served beyond this machine without " + l.guard + ": " + l.danger
		case !loopback && l.name == "http-addr" && c.TLSCert == "":
			text = "served beyond this machine without TLS (tls-cert, tls-key): " +
				"tokens and messages go over the network in clear text"
		case !loopback && l.name == "raft-addr" && c.RaftTLSCert == "" && !c.closed():
			text = "served beyond this machine without TLS (raft-tls-cert, raft-tls-key, " +
				"raft-tls-ca): messages go over the network in clear text, " +
				"and an attacker on the path can change them"
		}
		if text != "" {
			c.warnings = append(c.warnings, warning{l.name, l.addr, text})
		}
		if l.advertise != "" {
			if err := hostPort(l.advertise); err != nil {
				return settingsf("%s: %w", strings.Replace(l.name, "addr", "advertise", 1), err)
			}
		}
		advertised, _, _ := net.SplitHostPort(l.advertise)
		c.hosts = append(c.hosts, host, advertised)
		if l.name == "raft-addr" && unspecified(cmp.Or(l.advertise, l.addr)) {
			return settingsf("raft-addr %s is every address of this host; "+
				"raft-advertise must be the one at which the other nodes reach it", l.addr)
		}
	}
	return nil
}

// hostPort refuses an address that another node could not dial.
func hostPort(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || perr != nil || n == 0 {
		return fmt.Errorf("%.64q must be HOST:PORT", addr)
	}
	return nil
}

// unspecified reports whether an address means all of the host's.
func unspecified(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip, _ := netip.ParseAddr(host)
	return host == "" || ip.IsUnspecified()
}
