// Package peers has the drivers for other systems that keep queues on disk. Each
// is run and loaded in the way that its own documentation recommends for
// throughput with acknowledgements, in the same process as every other load.
package peers

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// All returns each of them in each of its settings.
func All() []system.System {
	return []system.System{
		NATS(1, false), NATS(1, true), NATS(1, true, Atomic),
		NATS(3, false), NATS(3, true), NATS(3, true, Atomic),
		RabbitMQ(1), RabbitMQ(3), Redis(), PostgreSQL(), Beanstalkd(),
	}
}

// server is the process of a system that has one.
type server struct{ proc *system.Process }

func (s *server) PIDs() []int { return s.proc.PIDs() }

func (s *server) stop(by syscall.Signal) error {
	if s.proc == nil {
		return nil
	}
	return s.proc.Stop(by)
}

// queues counts a system's queues.
type queues int

// next returns the name of one more.
func (n *queues) next() string {
	*n++
	return fmt.Sprint("q", *n)
}

// open is a producer or worker with nothing to close.
type open struct{}

func (open) Close() error { return nil }

// receive waits for a message for a second, and returns it with those that have come, too.
func receive[M any](ctx context.Context, came <-chan M, most int,
	delivery func(M) load.Delivery) (all []load.Delivery, err error) {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	for len(all) < most {
		var m M
		ok := false
		if len(all) == 0 {
			select {
			case m, ok = <-came:
			case <-timer.C:
				return nil, nil
			case <-ctx.Done():
				return nil, nil
			}
		} else {
			select {
			case m, ok = <-came:
			default:
				return all, nil
			}
		}
		if !ok {
			return nil, errors.New("the server closed the channel")
		}
		all = append(all, delivery(m))
	}
	return all, nil
}
