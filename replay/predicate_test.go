package replay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/projections"
)

// jobs has a queue jobs with some messages, the first of them leased.
func jobs(t *testing.T, messages int) (*world, event.ID) {
	t.Helper()
	w := begin(t, 1)
	w.queue("jobs", func(*event.Policy) {})
	first := w.produce("jobs", event.NewMessage{Key: "k0"})
	for i := 1; i < messages; i++ {
		w.now += 1000
		w.produce("jobs", event.NewMessage{Key: fmt.Sprint("k", i)})
	}
	w.take("jobs")
	return w, first
}

// holds asks a predicate of the state.
func (w *world) holds(text string) (ok bool, err error) {
	w.t.Helper()
	p, err := CompilePredicate(text)
	if err != nil {
		return false, err
	}
	w.m.View(func(s *projections.State) { ok, err = p(s) })
	return ok, err
}

func TestPredicates(t *testing.T) {
	w, id := jobs(t, 3)
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
		`index == 7`: true,
		`time > timestamp('2023-11-14T22:13:21Z') && time < timestamp('2024-01-01T00:00:00Z')`: true,
		`message('` + id.String() + `').enqueued_at < time`:                                    true,
		`queue('jobs').oldest_message_age_seconds >= 1`:                                        true,
	} {
		got, err := w.holds(text)
		assert.True(t, err == nil && got == want, "%s: %t, %v", text, got, err)
	}
}

// TestDeadAndReplayed: what died in a queue is counted under its name, and a
// message tells how often it was replayed.
func TestDeadAndReplayed(t *testing.T) {
	w := begin(t, 1)
	holds := func(text string) {
		t.Helper()
		ok, err := w.holds(text)
		assert.True(t, ok && err == nil, "%s: %t, %v", text, ok, err)
	}
	w.queue("jobs", func(p *event.Policy) { p.DeadLetterQueue = "auto" })
	first := w.produce("jobs", event.NewMessage{}).String()
	w.try("jobs", 0, event.OpDeadLetter)
	holds(`queue('jobs').dead == 1 && queue('jobs.dlq').dead == 0`)
	holds(`queue('jobs.dlq').dead_in_total == 1`)
	dead := w.deadOf("jobs")
	holds(`message('` + dead.String() + `').replays == 0`)
	holds(`message('` + dead.String() + `').first_id == '` + first + `'`)
	back := w.replay("jobs", dead).String()
	holds(`queue('jobs').dead == 0 && queue('jobs').replayed_in_total == 1`)
	holds(`queue('jobs.dlq').replayed_total == 1`)
	holds(`message('` + back + `').replays == 1 && message('` + back + `').first_id == '` + first + `'`)
}

// TestPredicatesThatFail: what cannot be compiled or asked is named with its place. A list of
// messages costs what is in it, each time that it is looked at.
func TestPredicatesThatFail(t *testing.T) {
	w, _ := jobs(t, 1000)
	for text, want := range map[string]string{
		`queue('jobs').dept > 1`:         "undefined field 'dept'",
		`queue('jobs').depth > 'x'`:      "no matching overload",
		`queue('jobs').depth`:            "must be true or false, this is int",
		`quee('jobs').depth > 1`:         "undeclared reference to 'quee'",
		`queue('jobs').depth >`:          "Syntax error",
		``:                               "Syntax error",
		strings.Repeat("true && ", 2000): "at most 8192 are taken",

		`message('x').exists`:                                      "not a ULID",
		`1 / (index - index) == 1`:                                 "division by zero",
		`messages('jobs').all(m, messages('jobs').size() == 1000)`: "costs too much",
		`messages('jobs').all(m, messages('nobody').size() == 0)`:  "",
	} {
		ok, err := w.holds(text)
		assert.ErrorContains(t, err, want, "%.80s", text)
		assert.Equal(t, ok, want == "", "%.80s", text)
	}
}
