package datadir

// Health is what a node knows of its data directory, and of the program that works in it.
type Health struct {
	Damaged []Damage `json:"damaged,omitempty"` // the oldest damage first, MaxDamaged at most
	// Round is the last time that everything was read; zeros: it has not been since the start.
	Round Round `json:"round,omitzero"`
	// Verifying is the verification that runs; zeros: none does.
	Verifying Verifying `json:"verifying,omitzero"`
	// FreeBytes and SizeBytes are of the disk; both are 0 where that is not known.
	FreeBytes uint64 `json:"free_bytes,omitempty"`
	SizeBytes uint64 `json:"size_bytes,omitempty"`
	Version   string `json:"version,omitempty"`
}

// MaxDamaged bounds Health.Damaged: a disk that fails damages everything.
const MaxDamaged = 16

// Damage is a file that failed its check and is not repaired.
type Damage struct {
	File   string `json:"file"`  // in the data directory: log/….seg
	Kind   string `json:"kind"`  // segment, index, checkpoint
	Since  int64  `json:"since"` // Unix ms, when it was found
	Detail string `json:"detail"`
}

// Verifying is how far a verification is.
type Verifying struct {
	Task  string `json:"task"` // its id
	Done  int64  `json:"done"` // bytes of the log, half of each when it is read, half when folded
	Total int64  `json:"total"`
}

// Round is one reading of all segments, their indexes and the checkpoints.
type Round struct {
	Ended  int64 `json:"ended"` // Unix ms
	TookMS int64 `json:"took_ms"`
	Bytes  int64 `json:"bytes"`
}
