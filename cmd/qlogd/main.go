// Command qlogd is an event-sourced message queue: the server, the forensic
// replay of its log, and the client, in one binary.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
