package wire

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// WebhookDefinition is the body of PUT /v1/webhooks/{name}: what /hook/{name} accepts and what
// becomes of it. It names secrets and never holds one. A message goes to Queue or is forwarded to
// the URL Target at once. MaxAgeSeconds bounds how far a signed time may be off; 0 is no limit.
// SignedAt gives that time where the signature covers a body with a time and no header with one.
// Filter returns true or false; what it rejects is answered and dropped.
//
// SignedAt, Filter, IdempotencyKey, Key, Kind and the values of MapTo.Input are CEL over payload
// (the body), headers, source_ip, received_at and webhook (the name).
type WebhookDefinition struct {
	Queue          string         `json:"queue,omitzero"`           // where its messages go
	Target         string         `json:"target,omitzero"`          // in place of queue: a URL
	VerifyHMAC     *VerifyHMAC    `json:"verify_hmac,omitzero"`     // nil: unsigned
	MaxAgeSeconds  *int64         `json:"max_age_seconds,omitzero"` // of signatures; nil: 300
	SignedAt       string         `json:"signed_at,omitzero"`       // an RFC 3339 or Unix time
	AllowIPs       []string       `json:"allow_ips,omitzero"`       // networks; none: all
	Filter         string         `json:"filter,omitzero"`          // false drops the message
	IdempotencyKey string         `json:"idempotency_key,omitzero"` // gives a string, "" for none, or a whole number
	Key            string         `json:"key,omitzero"`             // a string or a whole number, the message's key
	Kind           string         `json:"kind,omitzero"`            // a string, the message's kind
	Priority       jsontext.Value `json:"priority,omitzero"`        // 1 to 10, or an expression
	PayloadSchema  jsontext.Value `json:"payload_schema,omitzero"`  // JSON Schema for the body
	MapTo          *MapTo         `json:"map_to,omitzero"`          // nil: the payload is the body
}

// VerifyHMAC says how a request is signed, and with what.
type VerifyHMAC struct {
	// github, pagerduty, stripe, standard, slack, shopify, generic
	Scheme     string  `json:"scheme,omitzero"`
	Header     string  `json:"header,omitzero"`      // of generic; overrides that of others
	Prefix     string  `json:"prefix,omitzero"`      // of generic: before the signature
	SecretEnv  Strings `json:"secret_env,omitzero"`  // environment variables
	SecretFile Strings `json:"secret_file,omitzero"` // files below --secrets-dir
}

// MapTo builds the message's payload.
type MapTo struct {
	Input map[string]string `json:"input"` // an expression for each field
}

// Webhook is a webhook as the API shows it.
type Webhook struct {
	Name string `json:"name"`
	WebhookDefinition
	CreatedAt Time `json:"created_at"`
	UpdatedAt Time `json:"updated_at"`
}

// WebhookDelivery is a request to a webhook.
type WebhookDelivery struct {
	At        Time    `json:"at"`
	Node      string  `json:"node"` // that took it
	Status    int     `json:"status"`
	Code      string  `json:"code"`           // queued, duplicate, filtered, forwarded, client_gone, or the problem's
	Title     string  `json:"title,omitzero"` // of the problem
	MessageID *string `json:"message_id"`
	SourceIP  string  `json:"source_ip"`
}

// WebhookList answers GET /v1/webhooks.
type WebhookList struct {
	Webhooks   []Webhook `json:"webhooks"`
	NextCursor string    `json:"next_cursor,omitzero"`
}

// Hooked answers POST /hook/{name}. Exactly one of Queued, Filtered and Duplicate is true; State
// and Result say what became of a duplicate's first message.
type Hooked struct {
	OK             bool           `json:"ok"`
	Queued         bool           `json:"queued,omitzero"`
	Filtered       bool           `json:"filtered,omitzero"`
	Duplicate      bool           `json:"duplicate,omitzero"`
	IdempotencyKey string         `json:"idempotency_key,omitzero"`
	MessageID      string         `json:"message_id,omitzero"`
	State          string         `json:"state,omitzero"`
	Result         jsontext.Value `json:"result,omitzero"`
}

// Strings is a string or a list of strings in JSON.
type Strings []string

// IsZero reports whether there is none.
func (v Strings) IsZero() bool { return len(v) == 0 }

// MarshalJSONTo writes one as a string, several as a list.
func (v Strings) MarshalJSONTo(enc *jsontext.Encoder) error {
	if len(v) == 1 {
		return enc.WriteToken(jsontext.String(v[0]))
	}
	return json.MarshalEncode(enc, []string(v))
}

// UnmarshalJSONFrom reads a string, a list of strings, or null.
func (v *Strings) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*v = nil
	if dec.PeekKind() != '"' {
		return json.UnmarshalDecode(dec, (*[]string)(v))
	}
	var s string
	err := json.UnmarshalDecode(dec, &s)
	*v = Strings{s}
	return err
}
