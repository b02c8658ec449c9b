package wire

// Worker is who has leased from a queue within the last hour.
type Worker struct {
	Worker   string `json:"worker"` // as its leases named it; may be ""
	Queue    string `json:"queue"`
	Leases   int64  `json:"leases"` // how many messages
	Since    Time   `json:"since"`  // its first lease of the hour
	LastSeen Time   `json:"last_seen"`
}

// WorkerList answers GET /v1/workers.
type WorkerList struct {
	Workers    []Worker `json:"workers"`
	NextCursor string   `json:"next_cursor,omitzero"`
}
