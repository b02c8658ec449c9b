package main

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/qlogd/qlogd/internal/certs"
	"github.com/qlogd/qlogd/log/vfs"
)

var tlsCommands = group("tls",
	local("tls dev", func(c request, f *struct {
		Host  []string
		Force bool
	}) error {
		hosts := append(f.Host, "localhost", "127.0.0.1", "::1")
		files, until, err := testCertificates(hosts, time.Now())
		if err != nil {
			return err
		}
		if err := writeCertificates(c.args[0], files, f.Force); err != nil {
			return err
		}
		return c.answer(struct {
			Dir     string   `json:"dir"`
			Hosts   []string `json:"hosts"`
			Expires string   `json:"expires"`
		}{c.args[0], hosts, until.UTC().Format(time.RFC3339)}, nil,
			"%s", howToUse(c.args[0], hosts, until))
	}),
)

// howToUse says what to start with the certificates in dir.
func howToUse(dir string, hosts []string, until time.Time) string {
	one := slices.IndexFunc(hosts, func(h string) bool { return h[0] != '*' })
	return strings.NewReplacer(
		"DIR", filepath.Clean(dir), "HOSTS", strings.Join(hosts, ", "),
		"UNTIL", until.Format(time.DateOnly), "ADDR", net.JoinHostPort(hosts[one], "7070"),
	).Replace(`certificates for HOSTS are in DIR, valid until UNTIL

Each node, besides its name, addresses and --join:
  qlogd serve --tls-cert DIR/api.crt --tls-key DIR/api.key \
    --raft-tls-cert DIR/node.crt --raft-tls-key DIR/node.key --raft-tls-ca DIR/ca.crt

Clients:
  qlogd queue list --addr https://ADDR --ca-cert DIR/ca.crt
  curl --cacert DIR/ca.crt https://ADDR/v1/queues

For tests: anyone who has node.key or ca.key can join the cluster.`)
}

// certificateFile is a PEM file of a certificate or a key.
type certificateFile struct {
	name string
	mode fs.FileMode
	text []byte
}

// testCertificates returns the files of a new authority, of a certificate for the API of all nodes,
// and of one for their Raft ports, and when they expire. The API's does not open a Raft port.
func testCertificates(hosts []string, now time.Time) ([]certificateFile, time.Time, error) {
	// Clocks of test machines differ.
	t := x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0)}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if hostRE.MatchString(h) {
			t.DNSNames = append(t.DNSNames, h)
		} else {
			return nil, t.NotAfter, usagef("--host must be a name or an IP address, got %.64q", h)
		}
	}
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "qlogd test authority"}, NotBefore: t.NotBefore,
		NotAfter: t.NotAfter, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	api, node := t, t
	api.Subject.CommonName, node.Subject.CommonName = "qlogd API", "qlogd node"
	api.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	node.ExtKeyUsage = append(api.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	files, authority, err := certify("ca", ca, nil)
	for _, c := range []struct {
		name string
		cert *x509.Certificate
	}{{"api", &api}, {"node", &node}} {
		if err != nil {
			break
		}
		c.cert.KeyUsage = x509.KeyUsageDigitalSignature
		var pair []certificateFile
		pair, _, err = certify(c.name, c.cert, authority)
		files = append(files, pair...)
	}
	return files, t.NotAfter, err
}

var hostRE = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]{0,250}[A-Za-z0-9])?$`)

// certify returns the files of a certificate that the authority signs or, without one, itself.
func certify(name string, c *x509.Certificate, by *certs.Signer) (
	[]certificateFile, *certs.Signer, error) {
	cert, key, own, err := certs.Certify(c, by)
	return []certificateFile{{name + ".crt", 0o644, cert}, {name + ".key", 0o600, key}}, own, err
}

// writeCertificates writes files into dir, which it creates if missing. Files that exist are
// replaced only by force.
func writeCertificates(dir string, files []certificateFile, force bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		name := filepath.Join(dir, f.name)
		if _, err := os.Lstat(name); err == nil && !force {
			return fmt.Errorf("%s exists; --force replaces it and the others", name)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, f := range files {
		if err := replaceFile(filepath.Join(dir, f.name), f.text, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile writes a file, all or nothing: who reads it meanwhile sees the old one or the new one.
func replaceFile(name string, text []byte, mode fs.FileMode) error {
	if err := vfs.WriteFile(vfs.OS{}, name, text); err != nil { // of mode 0600
		return err
	}
	return os.Chmod(name, mode)
}
