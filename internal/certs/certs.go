// Package certs keeps certificates that change while the program runs.
//
// A Keeper has a certificate with its key, and perhaps the authority that the
// others' certificates are signed by. Its configurations ask it at each
// handshake, and it looks at its files then: what is renewed on disk counts for
// the next connection, without a restart. A file that is broken, or not yet
// whole, changes nothing.
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

// every is how often the files are looked at, at most.
const every = time.Second

// Keeper has the newest good certificates of its files. Its methods may be
// called from any goroutine.
type Keeper struct {
	// Logger is told once of each new state of the files that is broken. It
	// must be set before the first handshake; nil: slog.Default.
	Logger *slog.Logger

	files [3]string // certificate, key, authority ("": none)
	now   func() time.Time

	mu     sync.Mutex
	pair   *tls.Certificate
	roots  *x509.CertPool // nil without an authority
	looked time.Time
	seen   stamps // what the files were when they were read last, well or not
}

// stamps tell whether files have changed.
type stamps [3]struct {
	mod  time.Time
	size int64
}

// Load reads the PEM files of a certificate (the node's own first, then those
// between it and the authority), of its key, and of the authority's
// certificates. Without the last, "", there is neither a mutual server nor a
// client.
func Load(cert, key, ca string) (*Keeper, error) {
	k := &Keeper{files: [3]string{cert, key, ca}, now: time.Now}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Reload reads the files now. If they are broken, what was read before stays in
// use.
func (k *Keeper) Reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := k.stat()
	if err != nil {
		return err
	}
	return k.read(seen)
}

func (k *Keeper) stat() (s stamps, err error) {
	for i, f := range k.files {
		if f == "" {
			continue
		}
		st, err := os.Stat(f)
		if err != nil {
			return s, fmt.Errorf("certificates: %w", err)
		}
		s[i].mod, s[i].size = st.ModTime(), st.Size()
	}
	return s, nil
}

// read replaces what is kept, all or nothing.
func (k *Keeper) read(seen stamps) error {
	k.seen, k.looked = seen, k.now()
	pair, err := tls.LoadX509KeyPair(k.files[0], k.files[1])
	if err != nil {
		return fmt.Errorf("certificates: %s with %s: %w", k.files[0], k.files[1], err)
	}
	var roots *x509.CertPool
	if ca := k.files[2]; ca != "" {
		b, err := os.ReadFile(ca)
		if err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(b) {
			return fmt.Errorf("certificates: %s has no certificate of an authority", ca)
		}
	}
	k.pair, k.roots = &pair, roots
	return nil
}

// newest looks at the files, unless it just did.
func (k *Keeper) newest() (*tls.Certificate, *x509.CertPool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if since := k.now().Sub(k.looked); since >= every || since < 0 {
		k.looked = k.now()
		seen, err := k.stat()
		if err != nil {
			seen = stamps{} // one is gone: that is a state too
		}
		if seen != k.seen {
			k.seen = seen
			if err == nil {
				err = k.read(seen)
			}
			if err != nil {
				k.logger().Error("cannot use changed certificates, those from before stay in use", "error", err)
			} else {
				k.logger().Info("use changed certificates", "certificate", k.files[0], "until", k.pair.Leaf.NotAfter)
			}
		}
	}
	return k.pair, k.roots
}

func (k *Keeper) logger() *slog.Logger {
	if k.Logger != nil {
		return k.Logger
	}
	return slog.Default()
}

// Server is for who accepts connections. Mutual: who connects must have a
// certificate of the authority, and speak TLS 1.3; otherwise anybody may
// connect, with 1.2 or later.
func (k *Keeper) Server(mutual bool) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, _ := k.newest()
			return pair, nil
		},
	}
	if mutual {
		c.MinVersion = tls.VersionTLS13
		// Verified below, by the authority that is the newest then and not by
		// one that is fixed here.
		c.ClientAuth = tls.RequireAnyClientCert
		c.VerifyConnection = func(s tls.ConnectionState) error {
			return k.verify(s, "", x509.ExtKeyUsageClientAuth)
		}
		c.SessionTicketsDisabled = true
	}
	return c
}

// Client is for who connects: with the own certificate, to who has one of the
// authority for the host that was dialled. crypto/tls does not tell the check
// that host where it is an IP address: then who dials has to, by putting
// ServerName into the state that it hands to VerifyConnection. Without, no
// connection to an IP address comes about.
func (k *Keeper) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, _ := k.newest()
			return pair, nil
		},
		// Verified below, as for Server.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.ServerName == "" {
				return errors.New("certificates: the name of the other side is not known")
			}
			return k.verify(s, s.ServerName, x509.ExtKeyUsageServerAuth)
		},
	}
}

// verify does what crypto/tls would do with fixed roots.
func (k *Keeper) verify(s tls.ConnectionState, name string, usage x509.ExtKeyUsage) error {
	_, roots := k.newest()
	if roots == nil {
		return errors.New("certificates: no authority is given to verify others by")
	}
	if len(s.PeerCertificates) == 0 {
		return errors.New("certificates: the other side has none")
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, DNSName: name, CurrentTime: k.now(), KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return nil
}
