package sock

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair is both ends of a connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err = Listener(l).Accept(); err != nil {
		t.Fatal(err)
	}
	a = Wrap(raw)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// timedOut tells whether an error is that of a deadline, as net/http asks.
func timedOut(err error) bool {
	var ne net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) && errors.As(err, &ne) && ne.Timeout()
}

func TestBothWays(t *testing.T) {
	a, b := pair(t)
	sent := make([]byte, 5<<20+123) // more than the kernel has room for, and than one call moves
	r := rand.NewChaCha8([32]byte{1})
	r.Read(sent)
	back := make(chan error, 1)
	go func() { // returns all, in pieces of many sizes
		_, err := io.CopyBuffer(struct{ io.Writer }{b}, struct{ io.Reader }{b}, make([]byte, 7001))
		back <- errors.Join(err, b.(interface{ CloseWrite() error }).CloseWrite())
	}()
	wrote := make(chan error, 1)
	go func() {
		n, err := a.Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		wrote <- errors.Join(err, a.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, err := io.ReadAll(a)
	if err := errors.Join(err, <-wrote, <-back); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes came back, and not those %d that were sent", len(got), len(sent))
	}
	if n, err := a.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("behind the end: %d, %v", n, err)
	}
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Fatalf("nothing is read into nothing: %d, %v", n, err)
	}
}

func TestDeadlines(t *testing.T) {
	a, b := pair(t)
	a.SetDeadline(time.Unix(1, 0))
	if n, err := a.Read(make([]byte, 1)); n != 0 || !timedOut(err) {
		t.Fatalf("read past its deadline: %d, %v", n, err)
	}
	if n, err := a.Write([]byte("x")); n != 0 || !timedOut(err) {
		t.Fatalf("write past its deadline: %d, %v", n, err)
	}
	a.SetDeadline(time.Time{})

	// Of what nobody reads some goes, and how much is told.
	big := make([]byte, 64<<20)
	type written struct {
		n   int
		err error
	}
	wrote := make(chan written, 1)
	go func() {
		n, err := a.Write(big)
		wrote <- written{n, err}
	}()
	if _, err := b.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	a.SetWriteDeadline(time.Unix(1, 0))
	w := <-wrote
	n := w.n
	if n <= 0 || n >= len(big) || !timedOut(w.err) {
		t.Fatalf("wrote %d of %d, %v", n, len(big), w.err)
	}
	got := make(chan int64, 1)
	go func() {
		k, _ := io.Copy(io.Discard, struct{ io.Reader }{b})
		got <- k
	}()
	a.SetWriteDeadline(time.Time{})
	if _, err := a.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if k := <-got; k != int64(n) {
		t.Fatalf("%d bytes came, %d were told to have gone", k+1, n+1)
	}

	// One under way is held to a deadline that comes later.
	c, _ := pair(t)
	late := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		late <- err
	}()
	c.SetReadDeadline(time.Unix(1, 0))
	if err := <-late; !timedOut(err) {
		t.Fatal(err)
	}
}

func TestEnds(t *testing.T) {
	a, b := pair(t)
	ended := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		ended <- err
	}()
	a.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(err)
	}

	c, d := pair(t)
	d.(interface{ SetLinger(int) error }).SetLinger(0)
	d.Close()
	_, err := c.Read(make([]byte, 1))
	var op *net.OpError
	if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Op != "read" {
		t.Fatal(err)
	}
}

// TestReads is for who reads less than has come, and into more than comes.
func TestReads(t *testing.T) {
	a, b := pair(t)
	if _, err := a.Write([]byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 2)
	if _, err := io.ReadFull(b, p); err != nil || string(p) != "ab" {
		t.Fatalf("%q, %v", p, err)
	}
	p = make([]byte, 1<<20)
	if n, err := b.Read(p); err != nil || string(p[:n]) != "cdef" {
		t.Fatalf("%q, %v", p[:n], err)
	}
}
