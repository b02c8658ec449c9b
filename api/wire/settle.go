package wire

import "github.com/go-json-experiment/json/jsontext"

// AckRequest is the body of POST /v1/queues/{queue}/ack. Result is kept for
// duplicates of the messages. With Produce it is all or nothing, and answered by
// a TransactionResponse.
type AckRequest struct {
	LeaseIDs []string             `json:"lease_ids"`
	Result   jsontext.Value       `json:"result,omitzero"`
	Produce  []TransactionProduce `json:"produce,omitzero"`
}

// RetryRequest is the body of POST /v1/queues/{queue}/retry.
type RetryRequest struct {
	Items []RetryItem `json:"items"`
}

// RetryItem gives a message back for another try.
type RetryItem struct {
	LeaseID   string `json:"lease_id"`
	Error     string `json:"error,omitzero"`
	DelayMS   *int64 `json:"delay_ms,omitzero"`  // null: the policy's backoff
	Retryable *bool  `json:"retryable,omitzero"` // false: as dead-letter
}

// DeadLetterRequest is the body of POST /v1/queues/{queue}/dead-letter.
type DeadLetterRequest struct {
	Items []DeadLetterItem `json:"items"`
}

// DeadLetterItem gives a message up.
type DeadLetterItem struct {
	LeaseID string `json:"lease_id"`
	Error   string `json:"error,omitzero"`
}

// ExtendRequest is the body of POST /v1/queues/{queue}/extend.
type ExtendRequest struct {
	Items []ExtendItem `json:"items"`
}

// ExtendItem lets a lease end later: LeaseMS from now.
type ExtendItem struct {
	LeaseID string `json:"lease_id"`
	LeaseMS int64  `json:"lease_ms,omitzero"` // 0: the policy's
}

// ReleaseRequest is the body of POST /v1/queues/{queue}/release.
type ReleaseRequest struct {
	LeaseIDs []string `json:"lease_ids"`
}

// Bodies of POST /v1/leases/{lease_id}/…; all fields are optional, as is the
// body.
type (
	AckOne struct {
		Result  jsontext.Value       `json:"result,omitzero"`
		Produce []TransactionProduce `json:"produce,omitzero"` // answered by a TransactionResponse
	}
	RetryOne struct {
		Error     string `json:"error,omitzero"`
		DelayMS   *int64 `json:"delay_ms,omitzero"`
		Retryable *bool  `json:"retryable,omitzero"`
	}
	DeadLetterOne struct {
		Error string `json:"error,omitzero"`
	}
	ExtendOne struct {
		LeaseMS int64 `json:"lease_ms,omitzero"`
	}
	ReleaseOne struct{}
)

// SettleResponse answers a settle, in the order of the request.
type SettleResponse struct {
	Results []SettleResult `json:"results"`
}

// SettleResult answers for one lease.
type SettleResult struct {
	LeaseID        string `json:"lease_id"`
	Status         string `json:"status"`                    // acked, retried, dead_lettered, discarded, extended, released, rejected
	Code           string `json:"code,omitzero"`             // rejected: lease_lost
	NextAt         Time   `json:"next_at,omitzero"`          // retried
	LeaseExpiresAt Time   `json:"lease_expires_at,omitzero"` // extended
}

// TransactionRequest is the body of POST /v1/transactions: all of it or
// nothing.
type TransactionRequest struct {
	Ack        []string             `json:"ack,omitzero"` // lease ids
	Retry      []RetryItem          `json:"retry,omitzero"`
	DeadLetter []DeadLetterItem     `json:"dead_letter,omitzero"`
	Extend     []ExtendItem         `json:"extend,omitzero"`
	Produce    []TransactionProduce `json:"produce,omitzero"`
}

// TransactionProduce enqueues messages into one queue.
type TransactionProduce struct {
	Queue    string       `json:"queue"`
	Messages []NewMessage `json:"messages"`
}

// TransactionResponse answers a transaction: results in the order ack, retry,
// dead_letter, extend; messages in the order of produce.
type TransactionResponse struct {
	Results  []SettleResult `json:"results"`
	Messages []Produced     `json:"messages"`
}
