package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// pair is a certificate with its key.
type pair struct {
	cert, key []byte // PEM
	*Signer
}

func certify(t *testing.T, name string, by *Signer, set ...func(*x509.Certificate)) pair {
	t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	for _, f := range set {
		f(c)
	}
	cert, key, own, err := Certify(c, by)
	must(t, err)
	return pair{cert, key, own}
}

func newAuthority(t *testing.T, name string) pair {
	t.Helper()
	return certify(t, name, nil, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
}

// node is a certificate as nodes have it, for the host.
func (a pair) node(t *testing.T, name, host string, set ...func(*x509.Certificate)) pair {
	t.Helper()
	return certify(t, name, a.Signer, append([]func(*x509.Certificate){func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{host}, []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}}, set...)...)
}

var written time.Time // each file is newer than the ones before

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	written = written.Add(time.Minute)
	must(t, errors.Join(os.WriteFile(name, text, 0o600), os.Chtimes(name, written, written)))
}

// put replaces a keeper's certificate and key.
func put(t *testing.T, k *Keeper, p pair) {
	t.Helper()
	write(t, k.cert, p.cert)
	write(t, k.key, p.key)
}

// keeper has a certificate of one authority and trusts another.
func keeper(t *testing.T, by pair, name string, trust pair,
	set ...func(*x509.Certificate)) *Keeper {
	t.Helper()
	written = time.Now()
	d := t.TempDir()
	k := &Keeper{cert: d + "/cert.pem", key: d + "/key.pem", ca: d + "/ca.pem"}
	put(t, k, by.node(t, name, name, set...))
	write(t, k.ca, trust.cert)
	k, err := Load(k.cert, k.key, k.ca, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must(t, err)
	return k
}

// shake connects two, and returns the name in the certificate that the client saw and
// what each says of it.
func shake(t *testing.T, server, client *tls.Config) (name string, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		s := tls.Server(c, server)
		if err = s.Handshake(); err == nil {
			_, err = s.Write([]byte("x"))
		}
		done <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer raw.Close()
	c := tls.Client(raw, client)
	// In TLS 1.3 the server judges after the client has finished.
	_, clientErr = c.Read(make([]byte, 1))
	if certs := c.ConnectionState().PeerCertificates; len(certs) > 0 {
		name = certs[0].Subject.CommonName
	}
	raw.Close()
	return name, <-done, clientErr
}

func TestHandshake(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	serverOnly := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	good := keeper(t, ours, "n1", ours)
	client := keeper(t, ours, "n2", ours)
	of := func(by, trust pair, set ...func(*x509.Certificate)) *Keeper {
		return keeper(t, by, "n1", trust, set...)
	}
	const any = "*"
	check := func(t *testing.T, who, want string, err error) {
		if want == any {
			assert.True(t, err != nil, "%s noticed nothing", who)
		} else {
			assert.ErrorContains(t, err, want, who)
		}
	}
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		serverErr      string // "" is success, any is any error
		clientErr      string
	}{
		{"by name", good.Server(true), client.Client("n1"), "", ""},
		{"by address", good.Server(true), client.Client("127.0.0.1"), "", ""},
		{"other name", good.Server(true), client.Client("n3"), any, "not n3"},
		{"other address", good.Server(true), client.Client("127.0.0.2"), any, "127.0.0.2"},
		{"no name", good.Server(true), client.Client(""), any, "either ServerName or"},
		{"client of another authority", good.Server(true), of(theirs, ours).Client("n1"),
			"unknown authority", any},
		{"server of another authority", of(theirs, ours).Server(true), client.Client("n1"), any,
			"unknown authority"},
		{"client trusts another", good.Server(true), of(ours, theirs).Client("n1"), any,
			"unknown authority"},
		{"expired client", good.Server(true), of(ours, ours, expired).Client("n1"), "expired", any},
		{"expired server", of(ours, ours, expired).Server(true), client.Client("n1"), any,
			"expired"},
		{"no client certificate", good.Server(true), &tls.Config{InsecureSkipVerify: true},
			"didn't provide a certificate", any},
		{"certificate that is not for clients", good.Server(true),
			of(ours, ours, serverOnly).Client("n1"), "incompatible key usage", any},
		{"TLS 1.2 inside", good.Server(true), &tls.Config{InsecureSkipVerify: true,
			MaxVersion: tls.VersionTLS12}, "unsupported versions", any},
		{"TLS 1.2 outside", good.Server(false),
			&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, "", ""},
		{"TLS 1.1 outside", good.Server(false),
			&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10,
				MaxVersion: tls.VersionTLS11}, "unsupported versions", any},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, serverErr, clientErr := shake(t, c.server, c.client)
			check(t, "server", c.serverErr, serverErr)
			check(t, "client", c.clientErr, clientErr)
		})
	}
}

// TestRotation renews everything, the authority too, under configurations that
// are in use.
func TestRotation(t *testing.T) {
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	sk, ck := keeper(t, old, "n1", old), keeper(t, old, "n2", old)
	var logged bytes.Buffer
	sk.logger = slog.New(slog.NewTextHandler(&logged, nil))
	server := sk.Server(true)
	good := func(want string) {
		t.Helper()
		got, serverErr, clientErr := shake(t, server, ck.Client("n1"))
		require.True(t, serverErr == nil && clientErr == nil && got == want,
			"certificate %s, not %s; server: %v, client: %v", got, want, serverErr, clientErr)
	}
	good("n1")
	put(t, sk, old.node(t, "second", "n1"))
	good("second")

	// A certificate without its key, then garbage, then nothing: no change.
	third := old.node(t, "third", "n1")
	write(t, sk.cert, third.cert)
	logged.Reset()
	for range 3 {
		good("second")
	}
	assert.Equal(t, strings.Count(logged.String(), "failed to reload certificates"), 1)
	assert.ErrorContains(t, sk.Reload(), "private key")
	must(t, os.WriteFile(sk.ca, []byte("garbage"), 0o600))
	put(t, sk, third)
	assert.ErrorContains(t, sk.Reload(), "no certificate of an authority")
	good("second")
	must(t, os.Remove(sk.ca))
	logged.Reset()
	for range 3 {
		good("second")
	}
	assert.Equal(t, strings.Count(logged.String(), "no such file"), 1)
	assert.ErrorContains(t, sk.Reload(), "no such file")
	write(t, sk.ca, old.cert)
	good("third")

	// Another authority, at one side and then at the other, by Reload.
	put(t, sk, next.node(t, "fourth", "n1"))
	write(t, sk.ca, next.cert)
	must(t, sk.Reload())
	_, serverErr, clientErr := shake(t, server, ck.Client("n1"))
	assert.True(t, serverErr != nil && clientErr != nil, "two authorities: %v, %v", serverErr, clientErr)
	put(t, ck, next.node(t, "n2", "n2"))
	write(t, ck.ca, next.cert)
	must(t, ck.Reload())
	good("fourth")
}

// TestNoAuthority: nobody passes without one.
func TestNoAuthority(t *testing.T) {
	ca := newAuthority(t, "ca")
	f := keeper(t, ca, "n1", ca)
	k, err := Load(f.cert, f.key, "", slog.New(slog.DiscardHandler))
	must(t, err)
	_, serverErr, clientErr := shake(t, k.Server(true), k.Client("n1"))
	assert.True(t, serverErr != nil && clientErr != nil,
		"server: %v, client: %v", serverErr, clientErr)
	_, err = Load(f.cert+"x", f.key, f.ca, slog.New(slog.DiscardHandler))
	assert.ErrorContains(t, err, "no such file")
}

// must fails the test on an error.
var must = require.NoError
