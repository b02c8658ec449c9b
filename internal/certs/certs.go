// Package certs creates certificates, and reads them again when their files change, without a
// restart.
package certs

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// Keeper has the newest valid certificates of its files, which it checks at each handshake. A file
// that is broken, or incomplete, changes nothing. It is safe for concurrent use.
type Keeper struct {
	cert, key, ca string
	logger        *slog.Logger

	mu    sync.Mutex
	pair  *tls.Certificate
	roots *x509.CertPool // nil without an authority
	seen  string         // the files' times and sizes when they were last read
}

// Load reads the PEM files of a certificate (the node's own first, then those between it and the
// authority), of its key, and of the authority's certificates. Without the last, "", a mutual
// server and a client accept nobody. Each change of the files is logged once.
func Load(cert, key, ca string, logger *slog.Logger) (*Keeper, error) {
	k := &Keeper{cert: cert, key: key, ca: ca, logger: logger}
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

// stat returns the files' times and sizes; a missing file has none.
func (k *Keeper) stat() (seen string) {
	for _, f := range []string{k.cert, k.key, k.ca} {
		if st, err := os.Stat(f); err == nil {
			seen += fmt.Sprint(st.ModTime().UnixNano(), " ", st.Size())
		}
		seen += ";"
	}
	return seen
}

// read replaces the certificates, all or nothing.
func (k *Keeper) read(seen string) error {
	k.seen = seen
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

// newest returns the certificates, after it has checked the files.
func (k *Keeper) newest() (*tls.Certificate, *x509.CertPool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if seen := k.stat(); seen != k.seen {
		if err := k.read(seen); err != nil {
			k.logger.Error("failed to reload certificates, keeping the previous ones", "error", err)
		} else {
			k.logger.Info("certificates reloaded",
				"certificate", k.cert, "until", k.pair.Leaf.NotAfter)
		}
	}
	return k.pair, k.roots
}

var errNoAuthority = errors.New("certificates: no authority is given to verify others by")

// Server returns the configuration of a server. If it is mutual, clients must have a certificate of
// the authority, and use TLS 1.3; otherwise anyone may connect, with 1.2 or later.
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
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
				SessionTicketsDisabled: true,
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
		// Also for a server of another authority, whose error then names the cause.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pair, nil
		},
	}
}

// Signer is a certificate with its key.
type Signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certify returns a certificate like c with a new key, both as PEM and as a Signer. It is signed by
// the authority or, without one, by itself.
func Certify(c *x509.Certificate, by *Signer) (cert, key []byte, own *Signer, err error) {
	own = &Signer{cert: c}
	if own.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, nil, err
	}
	by = cmp.Or(by, own)
	cert, err = x509.CreateCertificate(rand.Reader, c, by.cert, own.key.Public(), by.key)
	if err != nil {
		return nil, nil, nil, err
	}
	if key, err = x509.MarshalPKCS8PrivateKey(own.key); err != nil {
		return nil, nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), own, nil
}
