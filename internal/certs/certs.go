// Package certs reads certificates again when their files change, without a restart.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// every is the least time between two looks at the files.
const every = time.Second

// Keeper has the newest good certificates of its files, at which it looks at each handshake. A file
// that is broken, or not yet whole, changes nothing. Its methods may be called from any goroutine.
type Keeper struct {
	cert, key, ca string
	logger        *slog.Logger
	now           func() time.Time

	mu     sync.Mutex
	pair   *tls.Certificate
	roots  *x509.CertPool // nil without an authority
	looked time.Time
	seen   string // the files' times and sizes when they were read last, well or not
}

// Load reads the PEM files of a certificate (the node's own first, then those between it and the
// authority), of its key, and of the authority's certificates. Without the last, "", nobody passes
// a mutual server or a client. The logger gets one line for each change of the files.
func Load(cert, key, ca string, logger *slog.Logger) (*Keeper, error) {
	k := &Keeper{cert: cert, key: key, ca: ca, logger: logger, now: time.Now}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Reload reads the files now. If they are broken, what was read before stays in use.
func (k *Keeper) Reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.read(k.stat())
}

// stat returns the files' times and sizes: where a file is missing, that is a state too.
func (k *Keeper) stat() (seen string) {
	for _, f := range []string{k.cert, k.key, k.ca} {
		if st, err := os.Stat(f); err == nil {
			seen += fmt.Sprint(st.ModTime().UnixNano(), " ", st.Size())
		}
		seen += ";"
	}
	return seen
}

// read replaces what is kept, all or nothing.
func (k *Keeper) read(seen string) error {
	k.seen, k.looked = seen, k.now()
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return fmt.Errorf("certificates: %s with %s: %w", k.cert, k.key, err)
	}
	var roots *x509.CertPool
	if k.ca != "" {
		b, err := os.ReadFile(k.ca)
		if err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(b) {
			return fmt.Errorf("certificates: %s has no certificate of an authority", k.ca)
		}
	}
	k.pair, k.roots = &pair, roots
	return nil
}

// newest looks at the files, unless it just did.
func (k *Keeper) newest() (*tls.Certificate, *x509.CertPool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if since := k.now().Sub(k.looked); since >= 0 && since < every {
		return k.pair, k.roots
	}
	k.looked = k.now()
	if seen := k.stat(); seen != k.seen {
		if err := k.read(seen); err != nil {
			k.logger.Error("cannot use changed certificates, those from before stay in use", "error", err)
		} else {
			k.logger.Info("use changed certificates", "certificate", k.cert, "until", k.pair.Leaf.NotAfter)
		}
	}
	return k.pair, k.roots
}

var errNoAuthority = errors.New("certificates: no authority is given to verify others by")

// Server returns the configuration of a server. Mutual: clients must have a certificate of the
// authority, and use TLS 1.3; otherwise anybody may connect, with 1.2 or later.
func (k *Keeper) Server(mutual bool) *tls.Config {
	if !mutual {
		return &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, _ := k.newest()
				return pair, nil
			},
		}
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pair, roots := k.newest()
			if roots == nil {
				return nil, errNoAuthority
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// Client returns the configuration of one connection to a server at the host, a name or an IP
// address: with the own certificate, for a server that has one of the authority for that host.
func (k *Keeper) Client(host string) *tls.Config {
	pair, roots := k.newest()
	if roots == nil {
		roots = x509.NewCertPool() // and not those of the system
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: roots,
		// Also to a server of another authority, which then says so.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pair, nil
		},
	}
}
