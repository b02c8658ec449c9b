package api

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestConns: over the bound the connection that has been idle longest is closed, on whichever
// listener it is, and never one with a request, whatever its protocol.
func TestConns(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		synctest.Test(t, func(t *testing.T) { testConns(t, protocol) })
	}
}

func testConns(t *testing.T, protocol string) {
	answer := make(chan bool)
	served := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		if r.URL.Path == "/wait" {
			<-answer
			_, _ = io.WriteString(w, r.Proto)
		}
	}
	conns := NewConns(4) // two from an address
	var listeners [2]func(from string) net.Conn
	for i := range listeners {
		srv := HTTPServer(http.HandlerFunc(served), Guard{}, conns, slog.New(slog.DiscardHandler))
		listeners[i] = dialled(t, srv)
		defer srv.Close()
	}
	dials := 0
	// dial connects, sends a text, and returns a function that reports whether the server has
	// closed the connection.
	dial := func(from, text string) (closed func() bool) {
		dials++
		c := listeners[dials%2](from)
		ended := make(chan bool)
		go func() {
			_, _ = io.WriteString(c, text)
			_, _ = io.Copy(io.Discard, c)
			close(ended)
		}()
		synctest.Wait()
		return func() bool {
			synctest.Wait()
			select {
			case <-ended:
				return true
			default:
				return false
			}
		}
	}

	busy := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return listeners[0]("busy"), nil
		},
	}
	busy.Protocols.SetHTTP1(protocol == "HTTP/1.1")
	busy.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
	defer busy.CloseIdleConnections()
	got := make(chan string, 1)
	go func() {
		res, err := (&http.Client{Transport: busy}).Get("http://1.2.3.4/wait")
		if err != nil {
			got <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		got <- string(b)
	}()
	synctest.Wait()

	request := "GET / HTTP/1.1\r\nHost: 1.2.3.4\r\n\r\n"
	silent, half := dial("a", ""), dial("b", request[:9])
	used := dial("c", request)
	full := []func() bool{silent, half, used}
	for i := range full {
		for j, closed := range full {
			assert.Equal(t, closed(), j < i, "after %d more: %d closed", i, j)
		}
		dial(fmt.Sprint("d", i), "")
	}
	one, two := dial("e", ""), dial("e", "")
	assert.False(t, one() || two(), "closed at the bound of an address")
	three := dial("e", "")
	assert.True(t, one() && !two() && !three(), "the idlest of the address is closed")
	part := " /wait HTTP/1.1\r\nHost: 1.2.3.4\r\nContent-Length: 2\r\n\r\n{"
	stalled := []func() bool{dial("h0", "POST"+part), dial("h1", "POST"+part), dial("h2", "GET"+part)}
	wait := "GET /wait HTTP/1.1\r\nHost: 1.2.3.4\r\n\r\n"
	dial("f0", wait)
	assert.True(t, stalled[0]() && !stalled[1]() && !stalled[2](), "the idlest body gives way")
	dial("f1", "POST"+part+"}")
	dial("f2", wait)
	assert.True(t, stalled[1]() && stalled[2](), "whose body stalls gives way")
	assert.True(t, dial("g", request)(), "a newcomer is closed where all are busy")
	open, closed := conns.counts()
	require.True(t, open == 4 && closed == 13, "%d open, %d closed", open, closed)
	close(answer)
	assert.Equal(t, <-got, protocol)
	assert.False(t, dial("g", request)(), "closed although others are idle")
}
