package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// work is one kind of load, on servers with a number of nodes.
type work struct {
	name  string
	title string
	nodes int
	put   load.Config // but payload's size and times
	how   how
	plain bool // qlogd is loaded by plain HTTP clients in place of the client library
}

// how a work is done.
type how int

const (
	flow    how = iota
	poll        // one message at a time into a queue on which a worker waits
	waiting     // many messages that nobody takes, and what memory they cost
)

// kinds are the loads; each is one of a single node (produce1) and one of three
// (produce3).
var kinds = []work{
	{name: "produce", title: "produce in batches of 100",
		put: load.Config{Producers: 8, Batch: 100}},
	{name: "json", title: "produce in batches of 100, as JSON",
		put: load.Config{Producers: 8, Batch: 100}, plain: true},
	{name: "cycle", title: "full cycle in batches of 100: produce, deliver, ack",
		put: load.Config{Producers: 8, Batch: 100, Workers: 8, Take: 100}},
	{name: "enqueue", title: "64 goroutines, each one message a call",
		put: load.Config{Producers: 64, Batch: 1}},
	{name: "singles", title: "full cycle, 64 producers and 64 workers, each one message a call",
		put: load.Config{Producers: 64, Batch: 1, Workers: 64, Take: 1}},
	{name: "http", title: "64 plain HTTP clients, one message a request",
		put: load.Config{Producers: 64, Batch: 1}, plain: true},
	{name: "latency", title: "from produce to delivery at 1,000/s",
		put: load.Config{Producers: 16, Batch: 1, Workers: 16, Take: 10, Rate: 1000}},
	{name: "poll", title: "long poll on an empty queue, until it has the message", how: poll},
	{name: "memory", title: "memory for messages that wait",
		put: load.Config{Producers: 4, Batch: 100}, how: waiting},
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
		all = append(all, w.name)
	}
	return work{}, fmt.Errorf("no work %q; there are %s, each with its number of nodes: produce3",
		name, strings.Join(all, " "))
}

// do does a work on a target.
func (w work) do(ctx context.Context, t load.Target, size int, warmup, d time.Duration,
	window func(bool)) (*load.Result, error) {
	c := w.put
	c.Size, c.Warmup, c.Duration, c.Window = size, warmup, d, window
	if w.how == poll {
		return load.Poll(ctx, t, c)
	}
	return system.Load(ctx, t, c)
}

// A metric's name says whether more of it is better.
const (
	rate        = "rate"               // messages/s: produced or, where there are workers, acked
	p50         = "p50_ms"             // of delivery or, where nobody takes, of a call of produce
	p99         = "p99_ms"             //
	p999        = "p999_ms"            //
	serverCPU   = "server_cpu"         // servers' CPU seconds for 1,000 messages
	ownCPU      = "generator_cpu"      // the generator's and its client's
	rss         = "rss_bytes"          // of all servers, at the end of what is measured
	eachBytes   = "bytes_each"         // growth of RSS for each of the later messages that wait
	eachAtFirst = "bytes_each_at_once" // the same from the empty queue on, with caches that filled
)

// order is that in which they are printed.
var order = []string{
	rate, p50, p99, p999, serverCPU, ownCPU, eachBytes, eachAtFirst, rss,
}

// metrics has how each is printed.
var metrics = map[string]struct {
	title string
	less  bool // less is better
}{
	rate:        {"messages/s", false},
	p50:         {"p50, ms", true},
	p99:         {"p99, ms", true},
	p999:        {"p99.9, ms", true},
	serverCPU:   {"servers' CPU s/1,000", true},
	ownCPU:      {"generator's CPU s/1,000", true},
	rss:         {"RSS, bytes", true},
	eachBytes:   {"RSS bytes a message", true},
	eachAtFirst: {"… with caches that filled", true},
}

// wanted is a target: what the ratio of qlogd to another should be, in one run.
type wanted struct {
	Work    string `json:"work"`
	Metric  string `json:"metric"`
	Ours    string `json:"ours"`
	Against string `json:"against"` // A+B: what the two give one after the other
	// Ratio is ours through theirs: at least that where more is better, at most
	// where less is. 0: no target, only printed.
	Ratio float64 `json:"ratio,omitempty"`
	// Most is what ours may be at most, whatever theirs is; 0 none.
	Most float64 `json:"most,omitempty"`
}

const (
	q1, q3, q3plain     = "qlogd-1", "qlogd-3", "qlogd-3-plain"
	natsR1, natsR3      = "nats-r1-always", "nats-r3-always"
	natsLax             = "nats-r3"
	natsR1Atomic        = "nats-r1-always-atomic"
	natsR3Atomic        = "nats-r3-always-atomic"
	rabbit1, rabbit3    = "rabbitmq-1", "rabbitmq-3"
	redis, pg, beanstlk = "redis-always", "postgres", "beanstalkd"
	limitRaft, limitWeb = "limit-raft-3", "limit-http-json"
	limitSync           = "limit-fsync"
	inSeries            = limitRaft + "+" + limitWeb
)

// targets are what qlogd should reach, and with whom it is compared.
var targets = []wanted{
	{Work: "produce3", Metric: rate, Ours: q3, Against: rabbit3, Ratio: 2.5},
	{Work: "produce3", Metric: rate, Ours: q3, Against: natsR3, Ratio: 1.5},
	{Work: "produce3", Metric: rate, Ours: q3, Against: natsR3Atomic},
	{Work: "produce3", Metric: rate, Ours: q3, Against: natsLax, Ratio: 1.0},
	{Work: "cycle3", Metric: rate, Ours: q3, Against: rabbit3, Ratio: 3.5},
	{Work: "cycle3", Metric: rate, Ours: q3, Against: natsR3, Ratio: 2.2},
	{Work: "cycle3", Metric: rate, Ours: q3, Against: natsR3Atomic},
	{Work: "cycle3", Metric: rate, Ours: q3, Against: natsLax, Ratio: 1.3},
	{Work: "enqueue3", Metric: rate, Ours: q3, Against: rabbit3, Ratio: 4},
	{Work: "enqueue3", Metric: rate, Ours: q3, Against: natsR3, Ratio: 3},
	{Work: "enqueue3", Metric: rate, Ours: q3, Against: natsLax, Ratio: 1.3},
	{Work: "enqueue3", Metric: rate, Ours: q3, Against: limitRaft},
	{Work: "singles3", Metric: rate, Ours: q3, Against: rabbit3, Ratio: 4},
	{Work: "singles3", Metric: rate, Ours: q3, Against: natsR3, Ratio: 3.5},
	{Work: "singles3", Metric: rate, Ours: q3, Against: natsLax, Ratio: 1.2},
	{Work: "http3", Metric: rate, Ours: q3plain, Against: natsR3, Ratio: 1.6},
	{Work: "http3", Metric: rate, Ours: q3plain, Against: limitRaft},
	{Work: "http3", Metric: rate, Ours: q3plain, Against: inSeries},
	{Work: "produce1", Metric: rate, Ours: q1, Against: natsR1, Ratio: 20},
	{Work: "produce1", Metric: rate, Ours: q1, Against: natsR1Atomic},
	{Work: "produce1", Metric: rate, Ours: q1, Against: rabbit1, Ratio: 3},
	{Work: "produce1", Metric: rate, Ours: q1, Against: redis, Ratio: 0.8},
	{Work: "produce1", Metric: rate, Ours: q1, Against: pg, Ratio: 0.8},
	{Work: "produce1", Metric: rate, Ours: q1, Against: beanstlk},
	{Work: "produce1", Metric: rate, Ours: q1, Against: limitSync},
	{Work: "cycle1", Metric: rate, Ours: q1, Against: natsR1, Ratio: 18},
	{Work: "cycle1", Metric: rate, Ours: q1, Against: natsR1Atomic},
	{Work: "cycle1", Metric: rate, Ours: q1, Against: rabbit1, Ratio: 3},
	{Work: "cycle1", Metric: rate, Ours: q1, Against: pg, Ratio: 1.3},
	{Work: "cycle1", Metric: rate, Ours: q1, Against: redis, Ratio: 0.65},
	{Work: "cycle1", Metric: rate, Ours: q1, Against: beanstlk},
	{Work: "enqueue1", Metric: rate, Ours: q1, Against: natsR1, Ratio: 12},
	{Work: "enqueue1", Metric: rate, Ours: q1, Against: rabbit1, Ratio: 3},
	{Work: "enqueue1", Metric: rate, Ours: q1, Against: pg, Ratio: 3},
	{Work: "enqueue1", Metric: rate, Ours: q1, Against: redis, Ratio: 1},
	{Work: "enqueue1", Metric: rate, Ours: q1, Against: beanstlk},
	{Work: "json3", Metric: rate, Ours: q3plain, Against: inSeries, Ratio: 0.8},
	{Work: "json3", Metric: rate, Ours: q3, Against: inSeries, Ratio: 1.0},
	{Work: "latency3", Metric: p50, Ours: q3, Against: natsR3, Ratio: 0.2},
	{Work: "latency3", Metric: p99, Ours: q3, Against: natsR3, Ratio: 0.25},
	{Work: "latency3", Metric: p50, Ours: q3, Against: natsLax, Ratio: 1.5},
	{Work: "latency3", Metric: p99, Ours: q3, Against: natsLax, Ratio: 1.5},
	{Work: "poll3", Metric: p50, Ours: q3, Against: natsR3, Ratio: 0.6},
	{Work: "singles3", Metric: serverCPU, Ours: q3, Against: rabbit3, Ratio: 0.3},
	{Work: "singles3", Metric: serverCPU, Ours: q3, Against: natsR3, Ratio: 0.4},
	{Work: "singles3", Metric: serverCPU, Ours: q3, Against: natsLax, Ratio: 1.0},
	{Work: "memory1", Metric: eachBytes, Ours: q1, Against: rabbit1, Most: 200},
	{Work: "memory1", Metric: eachBytes, Ours: q1, Against: redis, Most: 200},
}
