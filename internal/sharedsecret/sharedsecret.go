// Package sharedsecret lets two sides of a connection that have the same secret file prove it to
// each other, in the headers of HTTP requests.
package sharedsecret

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
)

const (
	minSecret = 16 // bytes
	maxSecret = 4 << 10
)

// Secret is a key that the nodes of a cluster share to authenticate each other: the last
// valid content of its file. It is safe for concurrent use.
type Secret struct {
	file string
	key  atomic.Pointer[[]byte]
}

// Load reads a file of at least 16 bytes that only its owner may read. A trailing
// newline is not part of the secret.
func Load(file string) (*Secret, error) {
	s := &Secret{file: file}
	return s, s.Reload()
}

// Reload reads the file again. If that fails, the previous secret stays in use.
func (s *Secret) Reload() error {
	// Without O_NONBLOCK, to open a named pipe would wait for its other end.
	f, err := os.OpenFile(s.file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s must be a regular file", s.file)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s can be used by its group or others (mode %04o), "+
			"but must be its owner's alone: chmod 600 it", s.file, mode)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return err
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) < minSecret || len(b) > maxSecret {
		return fmt.Errorf("%s must have %d to %d bytes, not %d: create it with openssl rand -base64 32",
			s.file, minSecret, maxSecret, len(b))
	}
	s.key.Store(&b)
	return nil
}

// mac returns the HMAC-SHA256 of texts, in hex.
func (s *Secret) mac(texts ...string) string {
	mac := hmac.New(sha256.New, *s.key.Load())
	for _, t := range texts {
		// The length prefix makes the encoding of a list unambiguous.
		_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(t))))
		_, _ = io.WriteString(mac, t)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// Two sides that share a secret prove it to each other in the headers of two HTTP requests on one
// connection:
//
//	request   Qlogd-Client-Nonce
//	response  Qlogd-Server-Nonce
//	request   the first one again, with both nonces and the client's Qlogd-Proof
//	response  the server's Qlogd-Proof
//
// A proof covers the prover's side, the path, both nonces and hellos and, under TLS, the session,
// so it cannot be replayed, reflected, or relayed to another TLS session. The client proves first,
// so a stranger who connects gets no proof to test guesses against offline.
const (
	clientNonce = "Qlogd-Client-Nonce"
	serverNonce = "Qlogd-Server-Nonce"
	proofHeader = "Qlogd-Proof"
	// HelloHeader has each side's hello, which the proofs cover.
	HelloHeader = "Qlogd-Hello"
)

// Begin makes a request the first one.
func (s *Secret) Begin(r *http.Request) { r.Header.Set(clientNonce, rand.Text()) }

// Begins reports whether a request is the first one, and is to be answered with a challenge.
func (s *Secret) Begins(r *http.Request) bool {
	return s != nil && r.Header.Get(clientNonce) != "" && r.Header.Get(proofHeader) == ""
}

// Challenge puts a nonce into the response to the first request, and returns it.
func (s *Secret) Challenge(answer http.Header) string {
	nonce := rand.Text()
	answer.Set(serverNonce, nonce)
	return nonce
}

// Prove makes a request the second one. answer is the response to the first one, t the session of
// TLS, if there is any.
func (s *Secret) Prove(r *http.Request, answer http.Header, t *tls.ConnectionState) {
	r.Header.Set(serverNonce, answer.Get(serverNonce))
	r.Header.Set(proofHeader, s.proof("client", r, answer, t))
}

// Check returns an error unless the second request proves that the client has the secret.
// Challenge is the nonce it was sent on this connection; answer has this side's hello. If s is nil,
// the client must not use a secret either.
func (s *Secret) Check(r *http.Request, challenge string, answer http.Header) error {
	const which = " (cluster-secret-file)"
	shown := r.Header.Get(clientNonce) != ""
	switch {
	case s == nil && !shown:
		return nil
	case s == nil:
		return errors.New("the connecting node uses a shared secret, this node has none" + which)
	case !shown:
		return errors.New("this node requires a shared secret, the connecting node has none" + which)
	case challenge == "" || r.Header.Get(serverNonce) != challenge:
		return errors.New("replayed hello: it does not answer the challenge of this connection")
	case !same(r.Header.Get(proofHeader), s.proof("client", r, answer, r.TLS)):
		return errors.New("the connecting node's shared secret differs from this node's" + which)
	}
	return nil
}

// Confirm adds this side's proof to the response to a request that Check has accepted. Call it
// last: the proof covers the headers that are set before.
func (s *Secret) Confirm(r *http.Request, answer http.Header) {
	answer.Set(proofHeader, s.proof("server", r, answer, r.TLS))
}

// Confirmed returns an error unless the response to the second request proves that the server has
// the secret. If s is nil, nothing needs to be proven.
func (s *Secret) Confirmed(r *http.Request, answer http.Header, t *tls.ConnectionState) error {
	if s != nil && !same(answer.Get(proofHeader), s.proof("server", r, answer, t)) {
		return errors.New("the answering node did not prove the shared secret (cluster-secret-file)")
	}
	return nil
}

func (s *Secret) proof(side string, r *http.Request, answer http.Header,
	t *tls.ConnectionState) string {
	var session []byte
	if t != nil {
		session, _ = t.ExportKeyingMaterial("EXPORTER-qlogd", nil, 32) // no error since TLS 1.3
	}
	return s.mac("qlogd", side, r.URL.Path, r.Header.Get(clientNonce), r.Header.Get(serverNonce),
		r.Header.Get(HelloHeader), answer.Get(HelloHeader), string(session))
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
