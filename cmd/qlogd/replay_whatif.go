package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/replay"
)

// otherPolicies is the file of --what-if.
type otherPolicies struct {
	byName map[string]*wire.PolicyUpdate
	used   map[string]bool
}

// parseOther reads the file: "queues", and below it the fields of a policy that
// differ, by the queue's name or * for all others.
func parseOther(name string, b []byte) (*otherPolicies, error) {
	var file struct {
		Queues map[string]any `yaml:"queues"`
	}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		return nil, usagef("%s: %w", name, err)
	}
	if len(file.Queues) == 0 {
		return nil, usagef("%s: it names no queues; "+
			"write \"queues: {jobs: {delivery: {max_attempts: 3}}}\"", name)
	}
	p := &otherPolicies{byName: map[string]*wire.PolicyUpdate{}, used: map[string]bool{}}
	for queue, fields := range file.Queues {
		if queue != "*" && !event.ValidName(queue) {
			return nil, usagef("%s: %.64q can't be a queue's name", name, queue)
		}
		u := &wire.PolicyUpdate{}
		j, err := json.Marshal(fields)
		if err == nil {
			err = wire.Decode(j, u)
		}
		if err == nil {
			err = possible(u)
		}
		if err != nil {
			return nil, usagef("%s: queue %s: %w", name, queue, err)
		}
		p.byName[queue] = u
	}
	return p, nil
}

// possible returns an error if no queue, whatever its ordering, can have the fields of u.
func possible(u *wire.PolicyUpdate) (err error) {
	for _, o := range []event.Ordering{event.FIFO, event.PerKey, event.Unordered} {
		probe := event.DefaultPolicy()
		probe.Ordering = o
		if _, err = api.UpdatePolicy("what-if", &probe, u, 0); err == nil {
			return nil
		}
	}
	return err
}

// change implements replay.WhatIfOptions.Change.
func (p *otherPolicies) change(queue string, policy *event.Policy) (bool, error) {
	u := p.byName[queue]
	if u == nil {
		u = p.byName["*"] // not for dead-letter queues
		if u == nil || policy.DeadLetterQueue == "" && strings.HasSuffix(queue, ".dlq") {
			return false, nil
		}
	}
	p.used[queue] = true
	return api.UpdatePolicy(queue, policy, u, 0)
}

// playWhatIf plays the log under another policy and prints the differences.
func (r *replayer) playWhatIf(d *replay.Dir) error {
	b, err := r.readInput(r.WhatIf)
	if err != nil {
		return err
	}
	other, err := parseOther(r.WhatIf, b)
	if err != nil {
		return err
	}
	bar := r.progress("playing", true)
	s, err := replay.WhatIf(r.ctx, &d.Source, replay.WhatIfOptions{
		From: r.from, To: r.to, Change: other.change, Filter: r.filter,
		ToleranceMS: r.Tolerance.Milliseconds(), Progress: bar.set,
		Diverged: func(x *replay.Divergence) error {
			bar.done()
			assumed := ""
			if x.WhatIf.Assumed {
				assumed = " (assumed)"
			}
			return r.say(named{"what_if": x}, "%-20s  %s  %-13s  %s → %s%s; first: %s → %s",
				x.Queue, x.MessageID, x.Effect, endText(&x.Real), endText(&x.WhatIf), assumed,
				stepText(x.First.Real), stepText(x.First.WhatIf))
		},
	})
	bar.done()
	if errors.Is(err, replay.ErrPolicy) {
		return usagef("%w", err)
	}
	if p, ok := errors.AsType[*event.Problem](err); ok {
		return usagef("%s: %s", r.WhatIf, p.Detail)
	}
	if err != nil {
		return err
	}
	for name := range other.byName {
		if name != "*" && !other.used[name] {
			return usagef("%s: there was no queue %s between --from and --to", r.WhatIf, name)
		}
	}
	return r.whatSummary(s)
}

func stepText(s *replay.Step) string {
	if s == nil {
		return "nothing more"
	}
	text := s.Type
	if s.Attempt > 0 {
		text += fmt.Sprintf(" %d", s.Attempt)
	}
	for _, v := range []string{s.Reason, s.Code} {
		if v != "" {
			text += " (" + v + ")"
		}
	}
	return text + " at " + s.Time.String()
}

func endText(e *replay.End) string {
	text := e.State
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	return text + " after " + plural(int64(e.Attempts), "attempt", "attempts")
}

func (r *replayer) whatSummary(s *replay.WhatIfSummary) error {
	header := "queue,messages,same"
	for _, e := range replay.Effects {
		header += "," + strings.ReplaceAll(string(e), "_", " ")
	}
	header += ",assumed,delay median,delay max"
	row := func(name string, c *replay.Counts) []any {
		out := []any{name, c.Messages, c.Same}
		for _, e := range replay.Effects {
			out = append(out, c.Effects[e])
		}
		return append(out, c.Assumed,
			time.Duration(c.DelayMedianMS)*time.Millisecond,
			time.Duration(c.DelayMaxMS)*time.Millisecond)
	}
	var rows [][]any
	for _, name := range sortedKeys(s.Queues) {
		rows = append(rows, row(name, s.Queues[name]))
	}
	rows = append(rows, row("all", s.All))
	err := r.table(named{"summary": s}, nil, header, rows)
	if err != nil || r.output == "json" {
		return err
	}
	if s.LateSettles > 0 {
		fmt.Fprintf(r.stdout, "%s would have come too late\n",
			plural(s.LateSettles, "settle", "settles"))
	}
	if s.Unneeded > 0 {
		fmt.Fprintf(r.stdout, "%s would have found nothing to bring back\n",
			plural(s.Unneeded, "replay or resurrection", "replays and resurrections"))
	}
	for _, part := range []struct {
		title string
		lines []string
	}{{"given", s.Given}, {"decided again", s.Decided}, {"can't be known", s.Unknown}} {
		fmt.Fprintf(r.stdout, "%s:\n  - %s\n", part.title, strings.Join(part.lines, "\n  - "))
	}
	return nil
}
