package api

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/log"
)

// forgetful is a state that remembers nothing below floor: the log must be
// asked, as far back as from.
type forgetful struct {
	Live
	floor uint64
}

func (f *forgetful) DedupFloor() uint64  { return f.floor }
func (f *forgetful) AnswerFloor() uint64 { return f.floor }

// asked is a log that records from where it is searched.
type asked struct {
	*fakeLog
	gone bool // history does not go back so far
	from []uint64
}

func (l *asked) From(at event.Instant) (uint64, error) {
	if l.gone && at.Kind == event.InstantTime {
		return 0, log.ErrGone
	}
	return l.fakeLog.From(at)
}

func (l *asked) Find(alias event.Hash, from uint64) (*event.Event, error) {
	l.from = append(l.from, from)
	return l.fakeLog.Find(alias, from)
}

func TestAskTheLogForWhatTheStateForgot(t *testing.T) {
	for name, gone := range map[string]bool{"history is kept": false, "history was cut": true} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			h.do("PUT", "/v1/queues/q", "").want(201)
			body := `{"messages":[{"payload":1}]}`
			id := h.do("POST", "/v1/queues/q/messages", body, "Idempotency-Key: k").want(201).str("messages.0.id")
			log := &asked{fakeLog: h.log, gone: gone}
			h.s.deps.State, h.s.deps.Log = &forgetful{h.fake, 9}, log
			before := h.proposals()
			again := h.do("POST", "/v1/queues/q/messages", body, "Idempotency-Key: k").want(201)
			if again.str("messages.0.id") != id || again.Header().Get("Idempotent-Replayed") != "true" || h.proposals() != before {
				t.Errorf("executed again: %s", again.Body)
			}
			h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":2}]}`, "Idempotency-Key: k").want(422)

			h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"idempotency_key":"m"}]}`).want(201)
			p := h.commands[len(h.commands)-1].Produce
			assert.NotEqual(t, p.Looked, 0,
				"the command does not say up to where was looked: %+v", p)
			for _, from := range log.from {
				assert.Equal(t, gone, from == 0, "looked from %d on", from)
			}
		})
	}
}

// An answer can be gone before its 24 hours are over, where history is kept for
// less. The write was done all the same.
func TestAnswerThatHistoryNoLongerHolds(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "", "Idempotency-Key: k").want(201)
	h.s.deps.Log = cutLog{h.log}
	if a := h.do("PUT", "/v1/queues/q", "", "Idempotency-Key: k").want(410); a.str("outcome") != "unknown" {
		t.Errorf("%s", a.Body)
	}
}

type cutLog struct{ *fakeLog }

func (cutLog) Content(event.Ref) (*event.Content, error) { return nil, log.ErrGone }

// The log has a message for ever, but not its key once it was deleted.
func TestDeletedInTheLog(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", `{"delivery":{"dead_letter_queue":"auto","max_attempts":1}}`).want(201)
	h.s.deps.State = &forgetful{h.fake, 1}
	seen := func() *event.NewMessage {
		h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"idempotency_key":"m"}]}`)
		return &h.commands[len(h.commands)-1].Produce.Messages[0]
	}
	lease := func() string {
		return h.do("POST", "/v1/queues/q/lease", `{}`).want(200).str("messages.0.lease_id")
	}
	assert.True(t, seen().Seen.IsZero(), "there is none")
	assert.True(t, seen().SeenAs == seen().Seen, "it is in the queue")
	h.do("POST", "/v1/leases/"+lease()+"/retry", `{}`).want(200)
	m := seen()
	assert.True(t, !m.SeenAs.IsZero() && m.SeenAs != m.Seen, "it is dead as another: %+v", m)
	h.do("DELETE", "/v1/messages/"+m.SeenAs.String(), "").want(204)
	assert.True(t, seen().Seen.IsZero(), "it was deleted")
	h.do("POST", "/v1/leases/"+lease()+"/ack", "").want(200)
	m = seen()
	assert.True(t, !m.Seen.IsZero() && m.SeenAs.IsZero(), "it was acked: %+v", m)
}
