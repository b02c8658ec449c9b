// Command outbox moves messages from a table of PostgreSQL to qlogd: what a transaction inserts is
// enqueued once if the transaction commits, and never if it does not. docs/recipes/outbox.md says
// how to run it, and why that is so.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/client"
)

func main() {
	addr := flag.String("addr", "http://127.0.0.1:7070", "a node, or several, separated by commas")
	database := flag.String("database", "", "PostgreSQL's URL; without it, PGHOST and so on")
	poll := flag.Duration("poll", time.Second, "how often to look for rows without a notification")
	flag.Parse()

	// The first signal ends ctx, and the relay finishes its batch; the second one ends the program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)

	c, err := client.New(*addr, client.WithToken(os.Getenv("QLOGD_TOKEN")))
	if err == nil {
		r := newRelay(*database, c, *poll, slog.Default())
		err = r.run(ctx)
	}
	if err != nil {
		slog.Error(err.Error())
		os.Exit(1)
	}
}
