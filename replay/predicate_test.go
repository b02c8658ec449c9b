package replay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/projections"
)

type nowhere struct{}

func (nowhere) Append(*event.Block) error { return nil }

// state has a queue jobs with three messages, the first of them leased.
func jobs(t *testing.T) (*projections.State, event.ID) {
	t.Helper()
	return jobsState(t, 3)
}

func jobsState(t *testing.T, messages int) (*projections.State, event.ID) {
	t.Helper()
	s := projections.New()
	m := fsm.New(s, nowhere{}, fsm.Options{})
	do := func(index uint64, c *event.Command) event.Result {
		e := &event.Entry{Rules: event.Rules, Time: 1_700_000_000_000 + int64(index)*1000,
			Commands: [][]byte{event.EncodeCommand(c)}}
		r, err := m.Apply(index, e.Encode())
		if err != nil || r[0].Problem != nil {
			t.Fatal(err, r[0].Problem)
		}
		return r[0]
	}
	do(1, &event.Command{PutQueue: &event.PutQueue{Name: "jobs", Policy: event.DefaultPolicy()}})
	p := &event.Produce{Queue: "jobs"}
	for i := range messages {
		p.Messages = append(p.Messages,
			event.NewMessage{Key: fmt.Sprint("k", i), Priority: 5, Size: 2})
	}
	id := do(2, &event.Command{Produce: p}).Produced[0].ID
	do(3, &event.Command{Lease: &event.Lease{Queues: []string{"jobs"}, Max: 1}})
	return s, id
}

func TestPredicates(t *testing.T) {
	s, id := jobs(t)
	for text, want := range map[string]bool{
		`queue('jobs').depth == 2 && queue('jobs').in_flight == 1`:          true,
		`queue('nobody').exists`:                                            false,
		`queue('nobody').depth == 0`:                                        true,
		`'jobs' in queues && queues['jobs'].enqueued_total == 3`:            true,
		`queues['nobody'].depth > 0`:                                        false,
		`queues.exists(q, queues[q].in_flight > 0)`:                         true,
		`size(messages('jobs')) == 3`:                                       true,
		`messages('jobs').exists(m, m.state == 'leased' && m.attempt == 1)`: true,
		`messages('jobs').all(m, m.key.startsWith('k') && m.priority == 5)`: true,
		`size(messages('nobody')) > 0`:                                      false,
		`message('` + id.String() + `').state == 'leased'`:                  true,
		`message('01ARZ3NDEKTSV4RRFFQ69G5FAV').exists`:                      false,
		`index == 3`: true,
		`time > timestamp('2023-11-14T22:13:22Z') && time < timestamp('2024-01-01T00:00:00Z')`: true,
		`message('` + id.String() + `').enqueued_at < time`:                                    true,
		`queue('jobs').oldest_message_age_seconds >= 1`:                                        true,
	} {
		p, err := CompilePredicate(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := p(s); err != nil || got != want {
			t.Errorf("%s: %t, %v", text, got, err)
		}
	}
}

// TestDeadAndReplayed: what died in a queue is counted under its name, and a
// message tells how often it was replayed.
func TestDeadAndReplayed(t *testing.T) {
	s := projections.New()
	m := fsm.New(s, nowhere{}, fsm.Options{})
	index := uint64(0)
	do := func(c *event.Command) event.Result {
		t.Helper()
		index++
		e := &event.Entry{Rules: event.Rules, Time: 1_700_000_000_000 + int64(index)*1000,
			Commands: [][]byte{event.EncodeCommand(c)}}
		r, err := m.Apply(index, e.Encode())
		if err != nil || r[0].Problem != nil {
			t.Fatal(err, r[0].Problem)
		}
		return r[0]
	}
	holds := func(text string) {
		t.Helper()
		p, err := CompilePredicate(text)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := p(s); !ok || err != nil {
			t.Errorf("%s: %t, %v", text, ok, err)
		}
	}
	policy := event.DefaultPolicy()
	do(&event.Command{PutQueue: &event.PutQueue{Name: "jobs", Policy: policy,
		DeadLetterAuto: true}})
	first := do(&event.Command{Produce: &event.Produce{Queue: "jobs",
		Messages: []event.NewMessage{{Priority: 5}}}}).Produced[0].ID
	lease := do(&event.Command{Lease: &event.Lease{Queues: []string{"jobs"},
		Max: 1}}).Leased[0].Lease
	do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpDeadLetter,
		Lease: lease}}}})
	holds(`queue('jobs').dead == 1 && queue('jobs.dlq').dead == 0 && queue('jobs.dlq').dead_in_total == 1`)
	dead, _ := s.Dead("jobs", event.DeadFilter{Limit: 1})
	holds(`message('` + dead[0].ID.String() + `').replays == 0 && message('` + dead[0].ID.String() + `').first_id == '` + first.String() + `'`)
	back := do(&event.Command{Replay: &event.Replay{Queue: "jobs",
		Items: []event.ReplayItem{{ID: dead[0].ID}}}}).Moved[0].To
	holds(`queue('jobs').dead == 0 && queue('jobs').replayed_in_total == 1 && queue('jobs.dlq').replayed_total == 1`)
	holds(`message('` + back.String() + `').replays == 1 && message('` + back.String() + `').first_id == '` + first.String() + `'`)
}

func TestWrongPredicatesAreToldWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		`queue('jobs').dept > 1`:         "undefined field 'dept'",
		`queue('jobs').depth > 'x'`:      "no matching overload",
		`queue('jobs').depth`:            "must be true or false, this is int",
		`quee('jobs').depth > 1`:         "undeclared reference to 'quee'",
		`queue('jobs').depth >`:          "Syntax error",
		``:                               "Syntax error",
		strings.Repeat("true && ", 2000): "at most 8192 are taken",
	} {
		if _, err := CompilePredicate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWhatFailsWhileAsking(t *testing.T) {
	s, _ := jobs(t)
	for text, want := range map[string]string{
		`message('x').exists`:      "not a ULID",
		`1 / (index - index) == 1`: "division by zero",
		`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a+b+c+d+e+f+index > 0))))))`: "costs too much",
	} {
		p, err := CompilePredicate(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A list of messages costs what it takes to make it, each time that it is made.
func TestListsWithinListsCost(t *testing.T) {
	s, _ := jobsState(t, 1000)
	for text, fine := range map[string]bool{
		`messages('jobs').all(m, m.priority == 5)`:                 true,
		`messages('jobs').all(m, messages('jobs').size() == 1000)`: false,
		`messages('jobs').all(m, messages('nobody').size() == 0)`:  true,
	} {
		p, err := CompilePredicate(text)
		if err != nil {
			t.Fatal(err)
		}
		ok, err := p(s)
		if fine && (err != nil || !ok) || !fine &&
			(err == nil || !strings.Contains(err.Error(), "costs too much")) {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
	}
}
