package replay

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/script"
)

// TestWhatIfs plays the cases of testdata/whatif.txt: what producers and workers did with the queue
// jobs, and under each "whatif", indented, what another policy would have made of it.
func TestWhatIfs(t *testing.T) {
	for _, c := range script.Cases(t, "testdata/whatif.txt") {
		t.Run(c.Title, func(t *testing.T) {
			s := &story{world: begin(t, 1), ids: map[string]event.ID{},
				leases: map[string]event.ID{}}
			var want []string
			for line := range strings.SplitSeq(c.Lines, "\n") {
				switch {
				case line == "" || line[0] == '#':
				case line[0] == ' ':
					want = append(want, strings.TrimSpace(line))
				default:
					assert.EqualSlices(t, s.said, want, "before %q", line)
					want, s.said = nil, nil
					s.play(line)
				}
			}
			assert.EqualSlices(t, s.said, want, "at the end")
		})
	}
}

// story is a case that is played.
type story struct {
	*world
	ids    map[string]event.ID // by name
	leases map[string]event.ID // of take
	said   []string            // of the last what-if
}

var settleOps = map[string]event.SettleOp{"ack": event.OpAck, "retry": event.OpRetry,
	"dead_letter": event.OpDeadLetter}

// play does what a line says. Its words are followed by settings, NAME=VALUE.
func (s *story) play(line string) {
	s.t.Helper()
	args, set := script.Words(line)
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		must(s.t, err)
		return n
	}
	switch verb, args := args[0], args[1:]; verb {
	case "queue":
		s.queue("jobs", func(p *event.Policy) { s.fields(p, set) })
	case "produce":
		var m event.NewMessage
		s.fields(&m, set)
		s.ids[args[0]] = s.produce("jobs", m)
	case "import": // a message of another system; twice it is the same
		m := event.NewMessage{Priority: 5, SourceID: "s-1", DedupKey: event.Hash{9}}
		p := s.do(&event.Command{Produce: &event.Produce{Queue: "jobs", Import: true,
			Messages: []event.NewMessage{m}}})[0].Produced[0]
		known, again := s.ids[args[0]]
		require.True(s.t, p.Duplicate == again && (!again || p.ID == known), "%+v", p)
		s.ids[args[0]] = p.ID
	case "try": // a worker's attempt that takes so many milliseconds
		s.try("jobs", number(args[0]), settleOps[args[1]])
	case "batch": // a call leases so many messages, and each takes so many milliseconds
		r := s.do(&event.Command{Lease: &event.Lease{Queues: []string{"jobs"},
			Max: int(number(args[0])), Worker: "w"}})[0]
		require.Equal(s.t, len(r.Leased), int(number(args[0])), "leased")
		for i := range r.Leased {
			s.pass(number(args[1]))
			s.settle(event.OpAck, r.Leased[i].Lease)
		}
	case "take": // a worker begins
		_, s.leases[args[0]] = s.take("jobs")
	case "ack":
		s.settle(event.OpAck, s.leases[args[0]])
	case "retry_after": // the worker says when
		_, lease := s.take("jobs")
		s.do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{
			{Op: event.OpRetry, Lease: lease, DelayMS: number(args[0])}}}})
	case "pass":
		s.pass(number(args[0]))
		s.do()
	case "replay": // what is dead
		s.ids[args[0]] = s.replay("jobs", s.deadOf("jobs"))
	case "purge_dead":
		s.do(&event.Command{PurgeDead: &event.PurgeDead{Queue: "jobs", Strict: true,
			IDs: []event.ID{s.deadOf("jobs")}}})
	case "resurrect":
		history, err := s.log.History(s.t.Context(), s.ids[args[0]])
		must(s.t, err)
		r := s.do(&event.Command{Resurrect: &event.Resurrect{To: "jobs", Order: event.OrderAppend,
			Items: []event.ResurrectItem{{
				ID: s.ids[args[0]], Last: event.RefOf(history[len(history)-1].ID), Key: "k",
				Priority: 5, Size: 10, First: s.ids[args[0]],
			}}}})[0]
		require.True(s.t, r.Problem == nil, "%+v", r)
		s.ids[args[1]] = r.Moved[0].To
	case "whatif":
		o := WhatIfOptions{}
		if ms, ok := set["tolerance"]; ok {
			o.ToleranceMS = number(ms)
			delete(set, "tolerance")
		}
		o.Change = change("jobs", func(p *event.Policy) { s.fields(p, set) })
		s.said = s.tell(s.run(o))
	default:
		s.t.Fatalf("there is no %q", verb)
	}
}

// fields sets the fields of a struct by their names.
func (s *story) fields(of any, set map[string]string) {
	s.t.Helper()
	for name, value := range set {
		f := reflect.ValueOf(of).Elem().FieldByName(name)
		if f.Kind() == reflect.String {
			f.SetString(value)
		} else {
			must(s.t, json.Unmarshal([]byte(value), f.Addr().Interface()))
		}
	}
}

// tell is a what-if in words: what became of whom, and the sums.
func (s *story) tell(sum *WhatIfSummary, diverged map[event.ID]*Divergence) (out []string) {
	step := func(s *Step) string {
		if s == nil {
			return "nothing"
		}
		return strings.TrimSpace(s.Type + " " + s.Reason + s.Code)
	}
	for name, id := range s.ids {
		if d := diverged[id]; d != nil {
			require.Equal(s.t, d.Queue, "jobs", "%s was in", name)
			assumed := map[bool]string{true: ", assumed"}[d.WhatIf.Assumed]
			out = append(out, fmt.Sprintf("%s is %s: at step %d %s, not %s; "+
				"in the end %s, not %s, %d ms later%s", name, d.Effect, d.First.Step,
				step(d.First.WhatIf), step(d.First.Real), d.WhatIf.State, d.Real.State,
				d.WhatIf.Time-d.Real.Time, assumed))
			delete(diverged, id)
		}
	}
	require.Equal(s.t, len(diverged), 0, "others differ")
	require.Equal(s.t, sum.Queues["jobs"].Messages, sum.All.Messages, "messages of jobs")
	slices.Sort(out)
	all := sum.All
	return append(out, fmt.Sprintf("%d of %d are the same, %d assumed; the median is %d ms later; "+
		"%d settled too late, %d were not replayed", all.Same, all.Messages, all.Assumed,
		all.DelayMedianMS, sum.LateSettles, sum.Unneeded))
}
