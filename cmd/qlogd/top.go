package main

import (
	"bytes"
	"cmp"
	"fmt"
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

var topCommand = plain("top", func(c request, f *topFlags) error {
	if f.Interval < 200*time.Millisecond {
		return usagef("--interval must be at least 200ms")
	}
	return c.ask(func(c request) error { return c.top(f) })
}, (*app).addrFlag, (*app).authFlags, (*app).contextFlag)

// sample is the queues at a time.
type sample struct {
	at     time.Time
	queues map[string]wire.Stats
}

// top prints the queues, again and again on a terminal until ctrl-C. Elsewhere it prints them once,
// with the rates between two looks.
func (c request) top(f *topFlags) error {
	ctx, stop := signal.NotifyContext(c.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	live := terminal(c.stdout)
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
			return c.topTable(queues, before, now)
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
	sortBusiest(queues)
	n := len(queues)
	if _, height, err := term.GetSize(int(c.stdout.(*os.File).Fd())); err == nil {
		queues = queues[:min(n, max(1, height-3))]
	}
	// Written at once, so that the screen does not flicker.
	var page bytes.Buffer
	fmt.Fprintf(&page, "qlogd %s  %s  every %v, ctrl-C ends\n", plural(n, "queue", "queues"),
		now.at.Format(time.TimeOnly), every)
	err := c.topRows(queues, before, now, func(header string, rows [][]any) error {
		page.WriteString(c.tableText(header, rows))
		return nil
	})
	text := strings.ReplaceAll(page.String(), "\n", "\x1b[K\n")
	_, werr := fmt.Fprint(c.stdout, "\x1b[H", text, "\x1b[K\x1b[J")
	return cmp.Or(err, werr)
}

func (c request) topTable(queues []wire.Queue, before, now sample) error {
	sortBusiest(queues)
	return c.topRows(queues, before, now, c.table)
}

// sortBusiest puts the queues with the most to do first.
func sortBusiest(queues []wire.Queue) {
	slices.SortStableFunc(queues, func(a, b wire.Queue) int {
		return cmp.Or(cmp.Compare(b.Stats.Depth+b.Stats.InFlight, a.Stats.Depth+a.Stats.InFlight),
			cmp.Compare(a.Name, b.Name))
	})
}

func (c request) topRows(queues []wire.Queue, before, now sample,
	print func(header string, rows [][]any) error) error {
	seconds := now.at.Sub(before.at).Seconds()
	rate := func(was, is int64, known bool) string {
		if !known || is < was || seconds <= 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", float64(is-was)/seconds)
	}
	var rows [][]any
	for i := range queues {
		q := &queues[i]
		s, state := &q.Stats, "running"
		was, known := before.queues[q.Name]
		if q.Paused {
			state = "paused"
		}
		rows = append(rows, []any{q.Name, state, s.Depth, s.InFlight, s.Scheduled, q.Dead,
			humanize.IBytes(uint64(s.Bytes)),
			(time.Duration(s.OldestMessageAgeSeconds) * time.Second).String(),
			rate(was.EnqueuedTotal, s.EnqueuedTotal, known),
			rate(was.AckedTotal, s.AckedTotal, known),
			rate(was.DeadLetteredTotal, s.DeadLetteredTotal, known)})
	}
	return print("queue,state,depth,in flight,scheduled,dead,bytes,oldest,enqueued/s,acked/s,dead/s",
		rows)
}
