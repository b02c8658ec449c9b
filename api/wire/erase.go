package wire

// EraseRequest asks that what users wrote in a message is erased everywhere.
type EraseRequest struct {
	Reason string `json:"reason"` // kept; needed unless DryRun is set
	DryRun bool   `json:"dry_run"`
}

// EraseKeyRequest asks that of all messages of a key that were in a queue.
type EraseKeyRequest struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"`
}

// Erasable answers a dry run: what an erasure would be about.
type Erasable struct {
	DryRun   bool  `json:"dry_run"`
	Messages int64 `json:"messages"` // each is all that it was, through dead-letter queues, replays and resurrections
	Live     int64 `json:"live"`     // ids that are in a queue now, and would be discarded
	Contents int64 `json:"contents"` // of events, that would be overwritten
	// MessageIDs are the first of their ids, one for each message.
	MessageIDs []string `json:"message_ids"`
}
