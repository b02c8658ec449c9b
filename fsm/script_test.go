package fsm

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/script"
)

// TestScripts plays the cases of testdata/script, each on a machine of its own. A line is an entry
// (its commands are separated by " | ") or a step of the test; the indented lines below it say what
// must come of its last command:
//
//	= ANSWER          the texts leased, statuses, what was moved, or a count
//	! CODE: DETAIL    it is refused, telling nothing but what a "told" has; DETAIL is optional
//	field NAME        the field that the refusal is about
//	told EVENTS       the entry's events; "N events", "at most N events", "... the last ones"
//	holds QUEUE ...   messages and states
//	stats QUEUE ...   some of the queue's numbers
//	policy QUEUE ...  some of the queue's policy
//	dead QUEUE ...    what died there, by a filter: "q Limit=2: a b more"
//	logged N REASON   so many events of the whole log have this reason
//	due, idle         whether the leader is told to go on at once
//
// Without a "!" no command may be refused. In the end the fold of the log must be the live state.
func TestScripts(t *testing.T) {
	for _, c := range script.Cases(t, "testdata/script/*.txt") {
		t.Run(c.Title, func(t *testing.T) {
			t.Parallel()
			s := &player{bench: setup(t)}
			for line := range strings.SplitSeq(c.Lines, "\n") {
				t.Log(line)
				switch {
				case line == "" || line[0] == '#':
				case line[0] == ' ':
					s.expect(strings.TrimSpace(line))
				default:
					s.settled()
					s.play(line)
				}
			}
			s.settled()
			s.refold()
		})
	}
}

// player plays a case.
type player struct {
	*bench
	result  event.Result // of the last command
	refused bool         // as expected
	told    bool         // its events were looked at
}

// settled ends what is expected of a line.
func (s *player) settled() {
	s.t.Helper()
	if !s.refused {
		s.ok(s.result)
	} else if !s.told {
		s.wantTells("")
	}
	s.result, s.refused, s.told = event.Result{}, false, false
}

func (s *player) number(text string) int {
	s.t.Helper()
	n, err := strconv.Atoi(text)
	must(s.t, err)
	return n
}

// take removes a setting, which is a number; 0 where it is not given.
func (s *player) setting(set map[string]string, name string) (n int) {
	if text, ok := set[name]; ok {
		n = s.number(text)
		delete(set, name)
	}
	return n
}

// fields sets the fields of a struct by their names.
func (s *player) fields(of any, set map[string]string) {
	s.t.Helper()
	for name, value := range set {
		f := reflect.ValueOf(of).Elem().FieldByName(name)
		_, enumerated := f.Interface().(fmt.Stringer)
		switch {
		case f.Kind() == reflect.String:
			f.SetString(value)
		case enumerated:
			for n := uint64(0); n < 10 && fmt.Sprint(f.Interface()) != value; n++ {
				f.SetUint(n)
			}
		default:
			must(s.t, json.Unmarshal([]byte(value), f.Addr().Interface()))
		}
	}
}

func (s *player) wantFields(of any, want map[string]string) {
	s.t.Helper()
	for name, value := range want {
		got := reflect.ValueOf(of).Elem().FieldByName(name)
		require.Equal(s.t, fmt.Sprint(got), value, "%s", name)
	}
}

// play does what a line says.
func (s *player) play(line string) {
	s.t.Helper()
	var commands []*event.Command
	for part := range strings.SplitSeq(line, " | ") {
		args, set := script.Words(part)
		switch verb, args := args[0], args[1:]; verb {
		case "tick":
			s.tick(int64(s.number(args[0])))
		case "later": // without an entry
			s.now += int64(s.number(args[0]))
		case "quiet":
			s.quiet()
		case "restart":
			s.restart()
		default:
			commands = append(commands, s.command(verb, args, set))
		}
	}
	if len(commands) > 0 {
		results := s.do(commands...)
		s.result = results[len(results)-1]
	}
}

// command makes one of a line's words and settings.
func (s *player) command(verb string, args []string, set map[string]string) *event.Command {
	s.t.Helper()
	c := &event.Command{}
	switch verb {
	case "queue":
		c.PutQueue = s.queueOf(args, set)
	case "define": // queues and webhooks, separated by commas
		c.Define = &event.Define{}
		for part := range strings.SplitSeq(strings.Join(args, " "), " , ") {
			args, set := script.Words(strings.ReplaceAll(part, "~", "="))
			if args[0] == "webhook" {
				c.Define.Webhooks = append(c.Define.Webhooks, *hookOf(args[1:]))
			} else {
				c.Define.Queues = append(c.Define.Queues, *s.queueOf(args[1:], set))
			}
		}
	case "webhook":
		c.PutWebhook = hookOf(args)
	case "put":
		c.Produce = s.produceOf(args, set)
	case "take":
		c.Lease = &event.Lease{Queues: args[:1], Max: s.number(args[1]), Kinds: args[2:]}
		s.fields(c.Lease, set)
	case "ack", "retry", "dead_letter", "release", "extend", "settle":
		c.Settle = s.settleOf(verb, args, set)
	case "commit":
		c.Transaction = &event.Transaction{Settle: s.settleOf("ack", args, set).Items}
	case "pause", "resume": // a queue, or one of its keys
		c.PauseQueue = &event.PauseQueue{Name: args[0], Paused: verb == "pause"}
		if len(args) > 1 {
			c.PauseQueue.Key = args[1]
		}
	case "purge":
		c.PurgeQueue = &event.PurgeQueue{Name: args[0]}
	case "drop":
		c.DeleteQueue = &event.DeleteQueue{Name: args[0], Force: true}
	case "remove":
		c.Delete = &event.DeleteMessage{ID: s.newest(args[0])}
	case "reschedule":
		c.Reschedule = &event.Reschedule{ID: s.newest(args[0]), DelayMS: -1}
		s.fields(c.Reschedule, set)
	case "replay":
		c.Replay = &event.Replay{Queue: args[0]}
		s.fields(c.Replay, set)
		for _, text := range args[1:] {
			c.Replay.Items = append(c.Replay.Items, event.ReplayItem{ID: s.newest(text)})
		}
	case "upgrade":
		c.Upgrade = &event.Upgrade{Rules: uint16(s.number(args[0]))}
	default:
		s.t.Fatalf("there is no command %q", verb)
	}
	return c
}

func (s *player) queueOf(args []string, set map[string]string) *event.PutQueue {
	s.t.Helper()
	q := &event.PutQueue{Name: args[0], Policy: event.DefaultPolicy()}
	q.DeadLetterAuto = len(args) > 1 && args[1] == "auto"
	q.IfRevision = uint64(s.setting(set, "revision"))
	s.fields(&q.Policy, set)
	return q
}

// hookOf takes a webhook's name and its queue, "-" for none.
func hookOf(args []string) *event.PutWebhook {
	return hook(strings.Trim(args[0], "-"), strings.Trim(args[1], "-"), "{}")
}

// produceOf takes a queue and texts; the settings are of every message, "times" repeats them.
func (s *player) produceOf(args []string, set map[string]string) *event.Produce {
	s.t.Helper()
	p := &event.Produce{Queue: args[0]}
	for range max(1, s.setting(set, "times")) {
		for _, text := range args[1:] {
			m := msg(text)
			s.fields(&m, set)
			p.Messages = append(p.Messages, m)
		}
	}
	return p
}

var settleOps = map[string]event.SettleOp{
	"ack": event.OpAck, "retry": event.OpRetry, "dead_letter": event.OpDeadLetter,
	"release": event.OpRelease, "extend": event.OpExtend,
}

// settleOf settles the newest leases of messages; a text may have its own verb: retry:a.
func (s *player) settleOf(verb string, texts []string, set map[string]string) *event.Settle {
	c := &event.Settle{}
	for _, text := range texts {
		own, of, ok := strings.Cut(text, ":")
		if !ok {
			own, of = verb, text
		}
		it := event.SettleItem{Op: settleOps[own], Lease: s.leases[of], DelayMS: -1}
		s.fields(&it, set)
		c.Items = append(c.Items, it)
	}
	return c
}

// expect holds an indented line against what has come.
func (s *player) expect(line string) {
	s.t.Helper()
	kind, rest, _ := strings.Cut(line, " ")
	args, set := script.Words(rest)
	switch kind {
	case "=":
		require.Equal(s.t, s.answer(), rest, "the answer")
	case "!":
		code, detail, _ := strings.Cut(rest, ": ")
		for text := range s.ids {
			detail = strings.ReplaceAll(detail, "{"+text+"}", s.newest(text).String())
		}
		s.wantProblem(s.result, code, detail)
		s.refused = true
	case "field":
		require.Equal(s.t, s.result.Problem.Field, rest, "the field")
	case "told":
		s.told = true
		s.wantTold(rest)
	case "holds":
		queue, want, _ := strings.Cut(rest, " ")
		require.Equal(s.t, s.holds(queue), want, "it holds")
	case "stats":
		q := s.q(args[0])
		s.wantFields(&q.Stats, set)
	case "policy":
		q := s.q(args[0])
		s.wantFields(&q.Policy, set)
	case "dead":
		s.wantDead(rest)
	case "logged":
		n := 0
		for _, e := range s.log.events() {
			if e.Reason.String() == args[1] {
				n++
			}
		}
		require.Equal(s.t, n, s.number(args[0]), "events of this reason")
	case "due", "idle":
		at, ok := s.m.NextDue()
		require.Equal(s.t, ok && at <= s.now, kind == "due", "something is due now")
	default:
		s.t.Fatalf("nothing can be expected by %q", kind)
	}
}

// answer is the last command's in words.
func (s *player) answer() string {
	var out []string
	for _, m := range s.result.Leased {
		out = append(out, s.names[m.ID])
	}
	for _, m := range s.result.Settled {
		out = append(out, m.Status)
	}
	for _, m := range s.result.Moved {
		if m.Code == "" {
			m.Code = "moved"
		}
		out = append(out, m.Code)
	}
	if len(out) == 0 {
		return fmt.Sprint(s.result.Count)
	}
	return strings.Join(out, " ")
}

func (s *player) wantTold(want string) {
	s.t.Helper()
	got, n := len(s.last().Events), 0
	if _, err := fmt.Sscanf(want, "at most %d events", &n); err == nil {
		require.True(s.t, got <= n, "%d events", got)
	} else if _, err := fmt.Sscanf(want, "%d events", &n); err == nil {
		require.Equal(s.t, got, n, "events")
	} else if end, ok := strings.CutPrefix(want, "... "); ok {
		require.True(s.t, strings.HasSuffix(s.tells(), end), "the events end otherwise")
	} else {
		s.wantTells(want)
	}
}

// wantDead looks for what died in a queue; After and Before are texts, To is behind the epoch.
func (s *player) wantDead(line string) {
	s.t.Helper()
	find, want, _ := strings.Cut(line, ": ")
	args, set := script.Words(find)
	f := event.DeadFilter{Limit: s.setting(set, "Limit")}
	if to := s.setting(set, "To"); to > 0 {
		f.To = epoch + int64(to)
	}
	for name, id := range map[string]*event.ID{"After": &f.After, "Before": &f.Before} {
		if text, ok := set[name]; ok {
			*id = s.newest(text)
		}
	}
	ms, more := s.m.Dead(args[0], f)
	var out []string
	for _, m := range ms {
		out = append(out, s.names[m.ID])
	}
	if more {
		out = append(out, "more")
	}
	require.Equal(s.t, strings.Join(out, " "), want, "died")
	if f == (event.DeadFilter{}) {
		require.Equal(s.t, s.m.DeadCount(args[0]), int64(len(ms)), "counted")
	}
}
