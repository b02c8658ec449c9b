package cluster

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

// TestNetworkCutsOneWay: of two nodes the first, which is this process, asks the
// second, which answers with each line that it gets.
func TestNetworkCutsOneWay(t *testing.T) {
	if !ownersKnown {
		t.Skip("whose connection it is can't be told on this system")
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	got := make(chan string, 100)
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					got <- in.Text()
					fmt.Fprintln(c, "answer to", in.Text())
				}
			}()
		}
	}()
	w := newNetwork(t, []string{"127.0.0.1:1", lis.Addr().String()}, func(node int) int {
		return map[int]int{0: os.Getpid()}[node]
	})
	w.serve()
	defer w.close()
	a, b := &Node{i: 0}, &Node{i: 1}
	dial := func() (net.Conn, *bufio.Scanner) {
		c, err := net.Dial("tcp", w.addrs()[1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, bufio.NewScanner(c)
	}
	c, answers := dial()
	say := func(s string) { fmt.Fprintln(c, s) }
	hears := func(want string) {
		t.Helper()
		if s := <-got; s != want {
			t.Fatalf("it heard %q, not %q", s, want)
		}
	}
	answered := func(want string) {
		t.Helper()
		if !answers.Scan() || answers.Text() != "answer to "+want {
			t.Fatalf("answered %q", answers.Text())
		}
	}
	nothing := func(what string) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatalf("%s: %d bytes came", what, n)
		}
		_ = c.SetReadDeadline(time.Time{})
	}
	say("1")
	hears("1")
	answered("1")

	// The answer is held, and comes when the line is mended.
	w.Cut(b, a)
	say("2")
	hears("2")
	nothing("b can't speak to a")
	w.Mend()
	answered("2")

	// The question is held, on a new connection as well.
	w.Cut(a, b)
	say("3")
	other, _ := dial()
	fmt.Fprintln(other, "4")
	nothing("a can't speak to b")
	if len(got) > 0 {
		t.Fatalf("b heard %s", <-got)
	}
	w.Mend()
	if x, y := <-got, <-got; x+y != "34" && x+y != "43" {
		t.Fatalf("b heard %s and %s", x, y)
	}
	answered("3")

	for name, cut := range map[string]func(){
		"isolated": func() { w.Isolate(b) }, "deafened": func() { w.Deafen(b) }, "muted": func() { w.Mute(a) },
	} {
		cut()
		say(name)
		nothing(name)
		if len(got) > 0 {
			t.Errorf("%s: b heard %s", name, <-got)
		}
		w.Mend()
		hears(name)
		answered(name)
	}
}
