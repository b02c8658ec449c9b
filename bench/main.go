// Command bench measures queue servers from outside, qlogd and others alike: it
// starts them on free ports and fresh directories, puts the same load on each in
// turns, and keeps what it saw. docs/performance.md says how to read it.
//
//	go run . compare                      everything, about an hour
//	go run . compare -works produce3 -systems qlogd-3,nats-r3-always
//	go run . report -svg targets.svg      tables and plots from the figures kept
//	go run . profile produce3             what one work costs qlogd
//	go run . growth                       the same work beside little and much
//	go run . stalls                       the longest waits beside work behind
//	go run . restart                      how long that takes, and verifying the log
//	go run . hooks                        webhooks in, beside a bare net/http server
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/qlogd/qlogd/bench/limits"
)

var commands = []struct {
	name string
	run  func(args []string) error
}{
	{"compare", compare}, {"report", report}, {"profile", profile},
	{"growth", growth}, {"stalls", stalls}, {"restart", restart}, {"hooks", hooks},
}

func main() {
	limits.Main() // in a child it does not return
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	var names []string
	for _, c := range commands {
		if len(args) > 0 && args[0] == c.name {
			return c.run(args[1:])
		}
		names = append(names, c.name)
	}
	return errors.New("name a command: " + strings.Join(names, ", "))
}
