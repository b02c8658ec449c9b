// Package peers has the drivers for other systems that keep queues on disk. Each
// is run and loaded in the way that its own documentation recommends for
// throughput with acknowledgements, in the same process as every other load.
package peers

import "github.com/qlogd/qlogd/bench/system"

// All returns each of them in each of its settings.
func All() []system.System {
	return []system.System{
		NATS(1, false), NATS(1, true), NATS(1, true, Atomic), NATS(3, false), NATS(3, true), NATS(3, true, Atomic),
		RabbitMQ(1), RabbitMQ(3), Redis(), PostgreSQL(), Beanstalkd(),
	}
}
