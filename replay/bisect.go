package replay

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
)

// Predicate is a question about a state. It must not keep the state.
type Predicate func(*projections.State) (bool, error)

// Turn is the point at which a predicate began to hold.
type Turn struct {
	Found   bool      `json:"found"`
	Already bool      `json:"already"`        // it held at the first instant already
	Index   uint64    `json:"index,omitzero"` // of the entry after which it holds
	Time    wire.Time `json:"time"`           // the log's clock there
	// Event is the one of the entry after which it holds until the entry's end; nil if it began
	// with the passing of time alone.
	Event *event.Event `json:"-"`
	Cost  BisectCost   `json:"-"`
}

// BisectCost is the work of a search.
type BisectCost struct {
	Checkpoints int    `json:"checkpoints"` // loaded
	Blocks      uint64 `json:"blocks"`      // folded
	Asked       int    `json:"asked"`       // evaluations of the predicate
}

// bisection is a search in progress.
type bisection struct {
	*Source
	Turn
	holds Predicate
}

func (t *bisection) stateAt(ctx context.Context, at event.Instant) (*projections.State, error) {
	state, cost, err := t.StateAt(ctx, at)
	t.Cost.Blocks += cost.Blocks
	return state, err
}

// turned records that the predicate holds at a state, if it does.
func (t *bisection) turned(holds bool, state *projections.State) *Turn {
	t.Found, t.Index, t.Time = holds, state.Index(), wire.Time(state.Clock())
	return &t.Turn
}

// Bisect finds the first event between two instants after which a predicate holds. An entry is
// atomic: only states after a whole entry count.
//
// It bisects the checkpoints in between, and then examines the entries between two of them one by
// one. If the predicate begins to hold several times, Bisect finds one of these points; if it does
// not hold at the last instant, it finds none. With exhaustive it examines every entry and finds
// the first point. InstantStart is the earliest state that can be rebuilt.
func (s *Source) Bisect(ctx context.Context, from, to event.Instant, holds Predicate,
	exhaustive bool, progress func(done, total int64)) (*Turn, error) {
	t := &bisection{Source: s}
	t.holds = func(state *projections.State) (bool, error) {
		t.Cost.Asked++
		return holds(state)
	}
	if from.Kind == event.InstantStart {
		var err error
		if from, err = s.Earliest(); err != nil {
			return nil, err
		}
	}
	low, err := t.stateAt(ctx, from)
	if err != nil {
		return nil, err
	}
	if t.Already, err = t.holds(low); err != nil || t.Already {
		return t.turned(t.Already, low), err
	}
	first := low.Index()
	last, err := s.Log.To(to)
	if err != nil || last <= first {
		return &t.Turn, err
	}
	if !exhaustive {
		high, err := t.stateAt(ctx, to)
		if err != nil {
			return nil, err
		}
		if ok, err := t.holds(high); err != nil || !ok {
			return &t.Turn, err
		}
		if low, last, err = t.halve(ctx, low, last); err != nil {
			return nil, err
		}
	}
	begin := low.Index() // of the linear part
	for b, err := range s.fold(ctx, low, last) {
		if err != nil {
			return nil, err
		}
		t.Cost.Blocks++
		if progress != nil {
			progress(int64(b.Index-first), int64(last-first))
		}
		if ok, err := t.holds(low); err != nil {
			return nil, err
		} else if ok {
			return t.turned(true, low), t.within(ctx, b, begin)
		}
	}
	if to.Kind != event.InstantTime {
		return &t.Turn, nil
	}
	low.Advance(to.Time) // after the last entry only time has passed
	ok, err := t.holds(low)
	return t.turned(ok, low), err
}

// halve narrows the range down to two neighbouring checkpoints: the predicate does not hold at the
// first and holds at the second. It returns the state at the first, and the index of the second.
func (t *bisection) halve(ctx context.Context, low *projections.State, last uint64) (
	*projections.State, uint64, error) {
	metas, _, err := checkpoint.List(t.FS, t.Checkpoints)
	if err != nil {
		return nil, 0, err
	}
	slices.Reverse(metas) // oldest first
	metas = slices.DeleteFunc(metas, func(m checkpoint.Meta) bool {
		return m.HeadIndex <= low.Index() || m.HeadIndex >= last
	})
	for len(metas) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		i := len(metas) / 2
		state, err := t.load(&metas[i])
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*checkpoint.CorruptError)) {
			metas = slices.Delete(metas, i, i+1) // the others serve
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		t.Cost.Checkpoints++
		ok, err := t.holds(state)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			last, metas = metas[i].HeadIndex, metas[:i]
		} else {
			low, metas = state, metas[i+1:]
		}
	}
	return low, last, nil
}

// within finds the event of an entry from which on the predicate holds until the entry's end.
func (t *bisection) within(ctx context.Context, b *event.Block, begin uint64) (err error) {
	state, cost, err := t.stateAfter(ctx, max(b.Index-1, begin))
	if err != nil {
		return err
	}
	t.Cost.Blocks += cost.Blocks
	defer foldFailed(b, &err)
	state.Begin(b.Index, b.Time)
	held, err := t.holds(state)
	for i := 0; i < len(b.Events) && err == nil; i++ {
		state.Apply(&b.Events[i])
		var now bool
		if now, err = t.holds(state); !now {
			t.Event = nil
		} else if !held {
			t.Event = &b.Events[i]
		}
		held = now
	}
	return err
}

// queueFacts is a queue as an expression sees it; exists is false, and the rest zero, without one.
type queueFacts struct {
	Name       string `cel:"name"`
	Exists     bool   `cel:"exists"`
	Paused     bool   `cel:"paused"`
	Depth      int64  `cel:"depth"`
	Held       int64  `cel:"held"`
	Scheduled  int64  `cel:"scheduled"`
	InFlight   int64  `cel:"in_flight"`
	Bytes      int64  `cel:"bytes"`
	OldestAge  int64  `cel:"oldest_message_age_seconds"`
	Partitions int64  `cel:"partitions"`
	Dead       int64  `cel:"dead"` // what died in it and is neither replayed nor purged

	Enqueued     int64 `cel:"enqueued_total"`
	Acked        int64 `cel:"acked_total"`
	DeadLettered int64 `cel:"dead_lettered_total"`
	Discarded    int64 `cel:"discarded_total"`
	Replayed     int64 `cel:"replayed_total"`    // out of it, a dead-letter queue
	ReplayedIn   int64 `cel:"replayed_in_total"` // into it
	DeadIn       int64 `cel:"dead_in_total"`     // into it, a dead-letter queue
	Imported     int64 `cel:"imported_total"`
	Resurrected  int64 `cel:"resurrected_total"`
}

// messageFacts is a live message as an expression sees it; exists is false, and the rest zero,
// without one.
type messageFacts struct {
	ID          string    `cel:"id"`
	Exists      bool      `cel:"exists"`
	Queue       string    `cel:"queue"`
	Key         string    `cel:"key"`
	Kind        string    `cel:"kind"`
	State       string    `cel:"state"`
	Held        bool      `cel:"held"`
	Priority    int64     `cel:"priority"`
	Attempt     int64     `cel:"attempt"`
	Size        int64     `cel:"size"`
	EnqueuedAt  time.Time `cel:"enqueued_at"`
	AvailableAt time.Time `cel:"available_at"`
	DeadReason  string    `cel:"dead_reason"` // of a dead one: why it died, and where
	DeadQueue   string    `cel:"dead_queue"`
	Replays     int64     `cel:"replays"` // how often it was replayed, under its earlier ids too
	FirstID     string    `cel:"first_id"`
}

// Limits of an expression and of its evaluation.
const (
	maxExpression = 8 << 10
	maxCost       = 1_000_000
)

// predicate is a checked expression.
type predicate struct {
	program cel.Program
	adapter types.Adapter
	// While it is asked:
	state *projections.State
	lists map[string]ref.Val // of messages, by queue
}

//go:embed predicate.txt
var predicateText string

// PredicateHelp lists what an expression can be about.
var PredicateHelp = strings.TrimSpace(predicateText)

// CompilePredicate compiles a CEL expression over a state, such as queue('jobs').depth > 100. Its
// errors name the place. The predicate is not safe for concurrent use.
func CompilePredicate(text string) (Predicate, error) {
	if len(text) > maxExpression {
		return nil, fmt.Errorf("the predicate has %d bytes, at most %d are taken",
			len(text), maxExpression)
	}
	p := &predicate{}
	queue, message := cel.ObjectType("replay.queueFacts"), cel.ObjectType("replay.messageFacts")
	function := func(name string, gives *cel.Type, do func(string) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.Overload(name+"_string", []*cel.Type{cel.StringType}, gives,
			cel.UnaryBinding(func(arg ref.Val) ref.Val {
				if p.state == nil { // a constant call while the expression is compiled
					return types.NewErr("no state")
				}
				return do(string(arg.(types.String)))
			})))
	}
	env, err := cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[queueFacts](), reflect.TypeFor[messageFacts](),
			ext.ParseStructTag("cel")),
		cel.Variable("index", cel.IntType),
		cel.Variable("time", cel.TimestampType),
		cel.Variable("queues", cel.MapType(cel.StringType, queue)),
		function("queue", queue, p.queue),
		function("message", message, p.message),
		function("messages", cel.ListType(message), p.messages),
	)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("the predicate: %w", issues.Err())
	}
	if ast.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("the predicate must be true or false, this is %s", ast.OutputType())
	}
	p.adapter = env.CELTypeAdapter()
	p.program, err = env.Program(ast, cel.CostLimit(maxCost), cel.CostTracking(costs{}),
		cel.EvalOptions(cel.OptOptimize))
	return p.holds, err
}

// costs makes messages() cost as much as its result, because it can be called within another.
type costs struct{}

// CallCost implements interpreter.ActualCostEstimator; nil is the usual cost.
func (costs) CallCost(_, overload string, _ []ref.Val, result ref.Val) *uint64 {
	list, ok := result.(traits.Sizer)
	if overload != "messages_string" || !ok {
		return nil
	}
	n, _ := list.Size().(types.Int)
	cost := uint64(n) + 1
	return &cost
}

// holds reports whether the predicate is true of a state. It does not hold if it reads a queue by
// queues['q'] that does not exist: that is no error.
func (p *predicate) holds(s *projections.State) (bool, error) {
	p.state, p.lists = s, map[string]ref.Val{}
	defer func() { p.state, p.lists = nil, nil }()
	out, _, err := p.program.Eval(map[string]any{
		"index":  int64(s.Index()),
		"time":   time.UnixMilli(s.Clock()).UTC(),
		"queues": func() any { return p.all() },
	})
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "no such key"):
		return false, nil
	case strings.Contains(err.Error(), "cost limit exceeded"):
		return false, fmt.Errorf("the predicate costs too much at index %d: "+
			"it looks at more than about %d things; narrow it down", s.Index(), maxCost)
	default:
		return false, fmt.Errorf("the predicate at index %d: %w", s.Index(), err)
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, errors.New("the predicate gave neither true nor false")
	}
	return holds, nil
}

func (p *predicate) all() map[string]*queueFacts {
	out := map[string]*queueFacts{}
	for _, q := range p.state.Queues() {
		out[q.Name] = queueOf(&q, p.state)
	}
	return out
}

func (p *predicate) queue(name string) ref.Val {
	q, ok := p.state.Queue(name)
	if !ok { // its dead letters may outlive it
		return p.adapter.NativeToValue(&queueFacts{Name: name, Dead: p.state.DeadCount(name)})
	}
	return p.adapter.NativeToValue(queueOf(&q, p.state))
}

func queueOf(q *event.QueueView, s *projections.State) *queueFacts {
	t, clock := &q.Stats, s.Clock()
	out := &queueFacts{
		Name: q.Name, Exists: true, Paused: q.Paused, Depth: t.Ready, Held: t.Held,
		Scheduled: t.Scheduled, InFlight: t.InFlight, Bytes: t.Bytes, Partitions: t.Partitions,
		Enqueued: t.Enqueued, Acked: t.Acked, DeadLettered: t.DeadLettered, Discarded: t.Discarded,
		Replayed: t.Replayed, ReplayedIn: t.ReplayedIn, DeadIn: t.DeadIn, Imported: t.Imported,
		Resurrected: t.Resurrected, Dead: s.DeadCount(q.Name),
	}
	if t.Oldest > 0 {
		out.OldestAge = max(0, clock-t.Oldest) / 1000
	}
	return out
}

func (p *predicate) message(text string) ref.Val {
	id, err := event.ParseID(text)
	if err != nil {
		return types.NewErr("message('%.40s') is %v", text, err)
	}
	m, ok := p.state.Message(id)
	if !ok {
		return p.adapter.NativeToValue(&messageFacts{ID: id.String()})
	}
	return p.adapter.NativeToValue(messageOf(&m))
}

func (p *predicate) messages(queue string) ref.Val {
	if list := p.lists[queue]; list != nil {
		return list
	}
	views, more := p.state.Messages(queue, event.MessageFilter{Limit: maxCost})
	if more {
		return types.NewErr("queue %s has more than %d messages, too many to look at each",
			queue, maxCost)
	}
	out := make([]*messageFacts, len(views))
	for i := range views {
		out[i] = messageOf(&views[i])
	}
	p.lists[queue] = p.adapter.NativeToValue(out)
	return p.lists[queue]
}

func messageOf(m *event.MessageView) *messageFacts {
	out := &messageFacts{
		ID: m.ID.String(), Exists: true, Queue: m.Queue, Key: m.Key, Kind: m.Kind,
		State: m.State.String(), Held: m.Held, Priority: int64(m.Priority),
		Attempt: int64(m.Attempt), Size: int64(m.Size), FirstID: m.ID.String(),
		EnqueuedAt: time.UnixMilli(m.EnqueuedAt).UTC(), AvailableAt: time.UnixMilli(m.Due).UTC(),
	}
	if m.Origin != nil {
		out.Replays, out.FirstID = int64(m.Origin.Replays), m.Origin.First.String()
	}
	if m.Dead != nil {
		out.DeadReason, out.DeadQueue = m.Dead.Reason.String(), m.Dead.Queue
		out.Replays, out.FirstID = int64(m.Dead.ReplayCount), m.Dead.First.String()
	}
	return out
}
