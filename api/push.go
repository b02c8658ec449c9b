package api

import (
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/event"
)

// checkPush checks the push of a policy and returns what is kept of it.
func (s *Server) checkPush(queue string, p *wire.Push) ([]byte, error) {
	if p.AnswerTo != "" && p.AnswerTo == queue {
		return nil, bad("push.answer_to", "push.answer_to must be another queue: answers would be delivered, and answered, for ever")
	}
	if s.deps.Push != nil {
		if err := s.deps.Push.Check(p); err != nil {
			return nil, err
		}
	}
	return wire.Marshal(p)
}

// answerToExists refuses a policy whose answers go to a queue that is not there.
func (s *Server) answerToExists(q *request, name string, p *event.Policy) error {
	to := AnswerTo(p)
	if to == "" || to == name {
		return nil
	}
	_, err := s.current(q, to)
	if missing, ok := err.(*event.Problem); ok && missing.Code == event.CodeQueueNotFound {
		return bad("push.answer_to", "push.answer_to %s does not exist; create it first", echo(to))
	}
	return err
}

// AnswerTo returns the queue that the answers of a policy's push go to, "" none.
func AnswerTo(p *event.Policy) string {
	if push := pushOf(p); push != nil {
		return push.AnswerTo
	}
	return ""
}

// pushOf returns a policy's push as it is told, nil none.
func pushOf(p *event.Policy) *wire.Push {
	if len(p.Push) == 0 {
		return nil
	}
	push := &wire.Push{}
	if err := wire.Decode(p.Push, push); err != nil {
		return nil // a newer program's: it is not delivered here either
	}
	return push
}
