package wire

// AttentionItem is something that may need an operator.
type AttentionItem struct {
	Kind      string  `json:"kind"`
	Severity  int     `json:"severity"` // 1, the worst, to 3
	Queue     *string `json:"queue"`
	Node      *string `json:"node"`
	Webhook   *string `json:"webhook,omitzero"` // of webhook_refused
	Since     Time    `json:"since"`            // null: not known
	Count     int64   `json:"count"`
	Key       *string `json:"key"`
	MessageID *string `json:"message_id"`
	Detail    string  `json:"detail"`
}

// Attention answers GET /v1/attention.
type Attention struct {
	Items []AttentionItem `json:"items"` // by severity, the oldest first
}
