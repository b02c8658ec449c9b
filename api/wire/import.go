package wire

// ImportRequest is the body of POST /v1/queues/{queue}/messages/import.
type ImportRequest struct {
	Messages []ImportMessage `json:"messages"`
}

// ImportMessage is a message from another system, which knows it by SourceID.
// One whose SourceID is in the queue already is ignored.
type ImportMessage struct {
	NewMessage
	SourceID string `json:"source_id"`
}

// ImportResponse answers it, in the order of the request.
type ImportResponse struct {
	Imported int64      `json:"imported"`
	Ignored  int64      `json:"ignored"`
	Messages []Imported `json:"messages"`
}

// Imported answers one message. ID is that of the message with this source id,
// imported now or before.
type Imported struct {
	SourceID string `json:"source_id"`
	ID       string `json:"id"`
	Status   string `json:"status"` // enqueued, duplicate
}
