package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"github.com/qlogd/qlogd/api/wire"
)

// topFlags are the flags of qlogd top.
type topFlags struct {
	Interval  time.Duration `default:"2s"`
	Namespace string
}

var topCommand = remote("top", func(c request, f *topFlags) error {
	if f.Interval < 200*time.Millisecond {
		return usagef("--interval must be at least 200ms")
	}
	return c.top(f)
})

// topLine is a queue, as top prints it. A rate is null where it is not known.
type topLine struct {
	Queue             string   `json:"queue"`
	Paused            bool     `json:"paused"`
	Depth             int64    `json:"depth"`
	InFlight          int64    `json:"in_flight"`
	Scheduled         int64    `json:"scheduled"`
	Dead              int64    `json:"dead"`
	Bytes             int64    `json:"bytes"`
	OldestSeconds     int64    `json:"oldest_message_age_seconds"`
	EnqueuedPerSecond *float64 `json:"enqueued_per_second"`
	AckedPerSecond    *float64 `json:"acked_per_second"`
	DeadPerSecond     *float64 `json:"dead_lettered_per_second"`
}

// sample is the queues at a time.
type sample struct {
	at     time.Time
	queues map[string]wire.Stats
}

// top prints the queues, again and again on a terminal until ctrl-C. Elsewhere, and as JSON, it
// prints them once, with the rates between two looks.
func (c request) top(f *topFlags) error {
	ctx, stop := signal.NotifyContext(c.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	live := terminal(c.stdout) && c.output != "json"
	var before sample
	for {
		queues, err := c.Queues(ctx, f.Namespace)
		if ctx.Err() != nil {
			return nil
		}
		now := sample{time.Now(), map[string]wire.Stats{}}
		for i := range queues {
			now.queues[queues[i].Name] = queues[i].Stats
		}
		switch {
		case err != nil && (!live || before.queues == nil):
			return err
		case err != nil:
			fmt.Fprintf(c.stdout, "\x1b[H%s\x1b[K", short(c.refusal(err).Error(), 200))
		case live:
			if err := c.screen(queues, before, now, f.Interval); err != nil {
				return err
			}
		case before.queues != nil:
			return list(c.app, topLines(queues, before, now), nil, topHeader, topRow)
		}
		if err == nil {
			before = now
		}
		if pause(ctx, f.Interval); ctx.Err() != nil {
			return nil
		}
	}
}

// screen redraws a terminal, as many queues as fit.
func (c request) screen(queues []wire.Queue, before, now sample, every time.Duration) error {
	lines := topLines(queues, before, now)
	n := len(lines)
	if _, height, err := term.GetSize(int(c.stdout.(*os.File).Fd())); err == nil {
		lines = lines[:min(n, max(1, height-3))]
	}
	var rows [][]any
	for i := range lines {
		rows = append(rows, topRow(&lines[i]))
	}
	// Written at once, so that the screen does not flicker.
	var page bytes.Buffer
	fmt.Fprintf(&page, "qlogd %s  %s  every %v, ctrl-C ends\n", plural(n, "queue", "queues"),
		now.at.Format(time.TimeOnly), every)
	page.WriteString(c.tableText(topHeader, rows))
	text := strings.ReplaceAll(page.String(), "\n", "\x1b[K\n")
	_, err := fmt.Fprint(c.stdout, "\x1b[H", text, "\x1b[K\x1b[J")
	return err
}

// topLines returns the queues, those with the most to do first.
func topLines(queues []wire.Queue, before, now sample) (lines []topLine) {
	slices.SortStableFunc(queues, func(a, b wire.Queue) int {
		return cmp.Or(cmp.Compare(b.Stats.Depth+b.Stats.InFlight, a.Stats.Depth+a.Stats.InFlight),
			cmp.Compare(a.Name, b.Name))
	})
	seconds := now.at.Sub(before.at).Seconds()
	for i := range queues {
		q := &queues[i]
		s := &q.Stats
		was, known := before.queues[q.Name]
		rate := func(was, is int64) *float64 {
			if !known || is < was || seconds <= 0 {
				return nil
			}
			return new(math.Round(10*float64(is-was)/seconds) / 10)
		}
		lines = append(lines, topLine{
			q.Name, q.Paused, s.Depth, s.InFlight, s.Scheduled, q.Dead, s.Bytes,
			s.OldestMessageAgeSeconds, rate(was.EnqueuedTotal, s.EnqueuedTotal),
			rate(was.AckedTotal, s.AckedTotal), rate(was.DeadLetteredTotal, s.DeadLetteredTotal),
		})
	}
	return lines
}

const topHeader = "queue,state,depth,in flight,scheduled,dead,bytes,oldest,enqueued/s,acked/s,dead/s"

func topRow(l *topLine) []any {
	rate := func(r *float64) string {
		if r == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f", *r)
	}
	return []any{
		l.Queue, stateOf(l.Paused), l.Depth, l.InFlight, l.Scheduled, l.Dead,
		humanize.IBytes(uint64(l.Bytes)), (time.Duration(l.OldestSeconds) * time.Second).String(),
		rate(l.EnqueuedPerSecond), rate(l.AckedPerSecond), rate(l.DeadPerSecond),
	}
}

var attentionCommand = remote("attention", func(c request, _ *none) error {
	items, err := c.Attention(c.ctx)
	return list(c.app, items, err, "severity,kind,queue,node,since,count,key,message,detail",
		func(t *wire.AttentionItem) []any {
			return []any{t.Severity, t.Kind, orDash(t.Queue), orDash(t.Node), c.when(t.Since), t.Count,
				orDash(t.Key), orDash(t.MessageID), t.Detail}
		})
})

// orDash is a column's text; nil is none.
func orDash(text *string) string {
	if text == nil {
		return "-"
	}
	return *text
}

var workersCommand = remote("workers", func(c request, f *struct{ Queue string }) error {
	workers, err := c.Workers(c.ctx, f.Queue)
	return list(c.app, workers, err, "queue,worker,leases,since,last seen",
		func(w *wire.Worker) []any {
			return []any{w.Queue, cmp.Or(w.Worker, "-"), w.Leases, c.when(w.Since), c.when(w.LastSeen)}
		})
})
