package peer

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/certs"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// authority signs nodes' certificates.
type authority struct {
	*certs.Signer
	pem []byte
}

// certificate returns one that is also good in a bubble's year 2000.
func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	c := certificate("ca")
	c.IsCA, c.BasicConstraintsValid = true, true
	cert, _, own, err := certs.Certify(c, nil)
	require.NoError(t, err)
	return &authority{own, cert}
}

// with gives a node a certificate of one authority, and trust in another.
func (a *authority) with(t *testing.T, trust *authority, names ...string) func(*Options) {
	t.Helper()
	c := certificate("node")
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	cert, key, _, err := certs.Certify(c, a.Signer)
	require.NoError(t, err)
	dir := t.TempDir()
	put := func(name string, text []byte) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		return name
	}
	k, err := certs.Load(put("cert", cert), put("key", key), put("ca", trust.pem),
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return func(o *Options) { o.TLS = k }
}
