package wire

// Task is what takes many entries: a large replay or purge, an erasure.
type Task struct {
	ID            string     `json:"id"`
	TaskID        string     `json:"task_id"` // the same
	Type          string     `json:"type"`    // replay, purge, erase
	Queue         string     `json:"queue"`   // "" none
	Status        string     `json:"status"`  // running, cancelled, completed, failed
	Total         int64      `json:"total"`   // about how many messages, when it began
	Done          int64      `json:"done"`
	Skipped       int64      `json:"skipped"`
	RatePerSecond *int64     `json:"rate_per_second"` // null: as fast as it goes
	Actor         string     `json:"actor"`
	CreatedAt     Time       `json:"created_at"`
	UpdatedAt     Time       `json:"updated_at"`
	EndedAt       Time       `json:"ended_at"`
	Error         string     `json:"error"` // of a failed one
	Nodes         []TaskNode `json:"nodes"` // an erasure: the members, and which of them have carried it out
}

// TaskNode is a node that has carried an erasure out, or is to.
type TaskNode struct {
	Node     string `json:"node"`
	Complete bool   `json:"complete"`
	At       Time   `json:"at"` // null: not yet
}

// TaskList answers GET /v1/tasks, the newest first.
type TaskList struct {
	Tasks      []Task `json:"tasks"`
	NextCursor string `json:"next_cursor,omitzero"`
}

// Statuses of a task.
const (
	TaskRunning   = "running"
	TaskCancelled = "cancelled"
	TaskCompleted = "completed"
	TaskFailed    = "failed"
)
