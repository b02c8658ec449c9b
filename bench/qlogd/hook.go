package qlogd

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
)

// Sender sends webhooks as GitHub does, one a request, over a connection of its
// own, and speaks just as much HTTP/1.1 as that takes.
type Sender struct {
	conn net.Conn
	r    *bufio.Reader
	head string
	buf  []byte
}

// NewSender connects to a server; path is where webhooks go there.
func NewSender(url, path string) (*Sender, error) {
	host := strings.TrimPrefix(url, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	return &Sender{conn: conn, r: bufio.NewReaderSize(conn, 4<<10), head: "POST " + path + " HTTP/1.1\r\nHost: " + host +
		"\r\nUser-Agent: GitHub-Hookshot/bench\r\nAccept: */*\r\nContent-Type: application/json\r\nX-GitHub-Event: ping\r\n"}, nil
}

// Sign returns the value of X-Hub-Signature-256 for a body.
func Sign(secret string, body []byte) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write(body)
	return "sha256=" + hex.EncodeToString(m.Sum(nil))
}

// Send sends a webhook with its signature, and wants 202.
func (s *Sender) Send(body []byte, signature, delivery string) error {
	s.buf = fmt.Appendf(s.buf[:0], "%sX-GitHub-Delivery: %s\r\nX-Hub-Signature-256: %s\r\nContent-Length: %d\r\n\r\n%s", s.head, delivery, signature, len(body), body)
	if _, err := s.conn.Write(s.buf); err != nil {
		return err
	}
	return answer(s.r, "202")
}

// Close hangs up.
func (s *Sender) Close() { _ = s.conn.Close() }
