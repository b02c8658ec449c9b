package api

import (
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// UpdatePolicy puts an update onto a policy, as PATCH does on a server without
// a limit of history. auto is true where the queue is to get a dead-letter queue
// of its own. An error tells the field.
func UpdatePolicy(queue string, p *event.Policy, u *wire.PolicyUpdate) (auto bool, err error) {
	return (&Server{}).updatePolicy(queue, p, u)
}
