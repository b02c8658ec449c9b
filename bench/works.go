package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/internal/load"
)

// work is one kind of load, on servers of so many nodes.
type work struct {
	name  string
	title string
	nodes int
	put   load.Config // but payload's size and times
	poll  bool        // in place of put: one message at a time into a queue on which a worker waits
	plain bool        // by plain HTTP clients in place of the client library
}

// kinds are the loads; each is one of a single node (produce1) and one of three
// (produce3).
var kinds = []work{
	{name: "produce", title: "produce in batches of 100", put: load.Config{Producers: 8, Batch: 100}},
	{name: "cycle", title: "full cycle in batches of 100: produce, deliver, ack", put: load.Config{Producers: 8, Batch: 100, Workers: 8, Take: 100}},
	{name: "enqueue", title: "64 goroutines, each one message a call", put: load.Config{Producers: 64, Batch: 1}},
	{name: "singles", title: "full cycle, 64 producers and 64 workers, each one message a call", put: load.Config{Producers: 64, Batch: 1, Workers: 64, Take: 1}},
	{name: "http", title: "64 plain HTTP clients, one message a request", put: load.Config{Producers: 64, Batch: 1}, plain: true},
	{name: "latency", title: "from produce to delivery at 1,000/s", put: load.Config{Producers: 16, Batch: 1, Workers: 16, Take: 10, Rate: 1000}},
	{name: "poll", title: "long poll on an empty queue until it has the message", poll: true},
}

// workNamed finds a work by its kind's name and a number of nodes: produce3.
func workNamed(name string) (work, error) {
	kind := strings.TrimRight(name, "0123456789")
	nodes, err := strconv.Atoi(name[len(kind):])
	for _, w := range kinds {
		if err == nil && nodes > 0 && w.name == kind {
			w.name, w.nodes = name, nodes
			return w, nil
		}
	}
	var all []string
	for _, w := range kinds {
		all = append(all, w.name+"1", w.name+"3")
	}
	return work{}, fmt.Errorf("no work %q; there are %s", name, strings.Join(all, " "))
}

// do does a work on a target.
func (w work) do(ctx context.Context, t load.Target, size int, warmup, d time.Duration, window func(bool)) (*load.Result, error) {
	if w.poll {
		return load.Poll(ctx, t, load.Config{Size: size, Warmup: warmup, Duration: d, Window: window})
	}
	c := w.put
	c.Size, c.Warmup, c.Duration, c.Window = size, warmup, d, window
	return load.Run(ctx, t, c)
}

// queues numbers the queues that works use: each begins with an empty one.
var queues atomic.Int64
