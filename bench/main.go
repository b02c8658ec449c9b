// Command bench measures queue servers from outside: it starts qlogd and others
// on free ports with fresh directories, applies the same load to each in turns
// and saves the results. docs/performance.md explains how to read them.
//
//	go run . compare                      everything, about an hour
//	go run . compare -works produce3 -systems qlogd-3,nats-r3-always
//	go run . compare -works produce3 -systems qlogd-3,qlogd-3@/path/to/another/build
//	go run . report                       tables of saved results
//	go run . profile produce3             the cost of one workload on qlogd
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
