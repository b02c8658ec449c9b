package replay

import (
	"context"
	_ "embed"
	"errors"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// basis has what the result of WhatIf is based on: what is given, decided again and unknown.
//
//go:embed whatif.txt
var basis string

// WhatIfOptions are the options of WhatIf.
type WhatIfOptions struct {
	From, To event.Instant
	// Change applies the other policy to a queue's; auto is true if the queue gets a dead-letter
	// queue of its own. It is called for every policy that a queue ever had.
	Change func(queue string, p *event.Policy) (auto bool, err error)
	Filter Filter // of what is reported; everything is played
	// ToleranceMS is the difference in time that is not reported.
	ToleranceMS int64
	// Diverged is called with each message whose life would have been another, in the order in
	// which they came.
	Diverged func(*Divergence) error
	// Progress, if not nil, is called with the time played and in all.
	Progress func(done, total int64)
}

// Step is one event in a message's life.
type Step struct {
	Type    string    `json:"type"` // an event's, or refused
	Time    wire.Time `json:"time"`
	Attempt uint32    `json:"attempt,omitzero"`
	Reason  string    `json:"reason,omitzero"`
	ToQueue string    `json:"to_queue,omitzero"`
	Code    string    `json:"code,omitzero"`    // of a refusal: queue_full, duplicate
	Assumed bool      `json:"assumed,omitzero"` // it rests on an attempt that was never made
}

// Divergence is a message whose life would have been another.
type Divergence struct {
	Queue     string          `json:"queue"`
	MessageID string          `json:"message_id"`
	Key       string          `json:"key,omitzero"`
	Effect    Effect          `json:"effect"`
	First     FirstDivergence `json:"first_difference"`
	Real      End             `json:"real"`
	WhatIf    End             `json:"what_if"`
}

// FirstDivergence is the first step that is another; nil on a side without one.
type FirstDivergence struct {
	Step   int   `json:"step"` // from 0
	Real   *Step `json:"real"`
	WhatIf *Step `json:"what_if"`
}

// End is how a message's time in its queue ended, or where it was at the last instant.
type End struct {
	State    string    `json:"state"` // a type of event, or waiting, leased, refused, duplicate
	Reason   string    `json:"reason,omitzero"`
	Time     wire.Time `json:"time"`
	Attempts uint32    `json:"attempts"` // leases
	Assumed  bool      `json:"assumed,omitzero"`
}

// Effect is what the other policy would have done to a message.
type Effect string

// The effects.
const (
	Refused      Effect = "refused"       // its queue would have been full
	Duplicate    Effect = "duplicate"     // it would have been one
	DeadLettered Effect = "dead_lettered" // it would have been, and was not
	Discarded    Effect = "discarded"     // it would have been, and was not
	Spared       Effect = "spared"        // it was either of these, and would not have been
	Delayed      Effect = "delayed"       // the same end, later; or none yet
	Sooner       Effect = "sooner"
	Otherwise    Effect = "otherwise" // another way to the same end at the same time
)

// Effects in the order in which they are printed.
var Effects = []Effect{
	Refused, Duplicate, DeadLettered, Discarded, Spared, Delayed, Sooner, Otherwise,
}

// Counts are of one queue or of all.
type Counts struct {
	Messages int64            `json:"messages"`
	Same     int64            `json:"same"`
	Assumed  int64            `json:"assumed"` // messages of which something is assumed
	Effects  map[Effect]int64 `json:"effects"`
	// By how long messages that end the same way end later (negative: sooner).
	DelayMedianMS int64 `json:"delay_median_ms"`
	DelayMaxMS    int64 `json:"delay_max_ms"`

	delays []int64
}

func newCounts() *Counts {
	c := &Counts{Effects: map[Effect]int64{}}
	for _, e := range Effects {
		c.Effects[e] = 0
	}
	return c
}

// WhatIfSummary is the result of WhatIf.
type WhatIfSummary struct {
	FirstIndex  uint64             `json:"first_index"`
	LastIndex   uint64             `json:"last_index"`
	All         *Counts            `json:"all"`
	Queues      map[string]*Counts `json:"queues"`
	LateSettles int64              `json:"late_settles"`       // that would have come too late
	Unserved    int64              `json:"waiting_workers"`    // at the end
	Unneeded    int64              `json:"replays_not_needed"` // and resurrections not needed
	Given       []string           `json:"given"`
	Decided     []string           `json:"decided"`
	Unknown     []string           `json:"unknown"`
}

// ErrPolicy is wrapped by the error of a what-if whose policy a queue can't have.
var ErrPolicy = errors.New("policy is refused")

// WhatIf plays the log between two instants under another policy. It takes what producers, workers
// and operators did as given, and lets the real state machine decide the rest again.
//
// The log is read once for the facts, which are then played in the order of time against an
// fsm.Machine that begins with the state at the first instant. For each attempt that becomes
// possible one worker asks the queue, after the same time as in reality; the machine decides which
// message it gets. A worker that gets none waits for the next message. A message that waited behind
// another one of its key is leased as long after that one had left as in reality. So with the real
// policies the same things happen at the same times.
//
// Attempts that did not happen in reality are assumed to end as the message's last one did;
// everything that rests on such an assumption is marked.
func WhatIf(ctx context.Context, src *Source, o WhatIfOptions) (*WhatIfSummary, error) {
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	f, err := gather(ctx, src, &o)
	if err != nil {
		return nil, err
	}
	s := newStage(f, &o)
	if err := s.play(ctx); err != nil {
		return nil, err
	}
	return s.compare()
}
