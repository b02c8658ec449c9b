// Package sharedsecret lets two sides of a connection that have the same secret file prove it to
// each other, in the headers of HTTP requests.
package sharedsecret

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
)

const (
	minSecret = 16 // bytes
	maxSecret = 4 << 10
)

// Secret is a key that the nodes of a cluster share to authenticate each other (proof.go): the last
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
