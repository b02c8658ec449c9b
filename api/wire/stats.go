package wire

// QueueStats answers GET /v1/queues/{queue}/stats: what is counted of a queue by
// the node that is asked, about a second behind its log.
type QueueStats struct {
	Queue                   string            `json:"queue"`
	Index                   uint64            `json:"index"`               // up to which is counted
	MessagesPerMinute       *float64          `json:"messages_per_minute"` // null: not known
	OldestMessageAgeSeconds int64             `json:"oldest_message_age_seconds"`
	Totals                  map[string]uint64 `json:"totals"`         // events by type, since the queue was made
	DeadByReason            map[string]uint64 `json:"dead_by_reason"` // messages that died in it, since then
	Minutes                 []Minute          `json:"minutes"`        // oldest first, those in which something happened
}

// Minute is what happened in a queue during one minute.
type Minute struct {
	Start        Time   `json:"start"`
	Enqueued     uint64 `json:"enqueued"`
	Leased       uint64 `json:"leased"`
	Acked        uint64 `json:"acked"`
	Retried      uint64 `json:"retried"`
	LeaseExpired uint64 `json:"lease_expired"`
	DeadLettered uint64 `json:"dead_lettered"`
	Discarded    uint64 `json:"discarded"`
	Replayed     uint64 `json:"replayed"` // out of it: it is a dead-letter queue
}

// Projections answers GET /v1/projections and POST /v1/projections/rebuild: how
// far the read models of the node that is asked have come.
type Projections struct {
	Index   uint64 `json:"index"` // up to which is counted
	Time    Time   `json:"time"`  // the log's clock there; null at its start
	LogHead uint64 `json:"log_head"`
}
