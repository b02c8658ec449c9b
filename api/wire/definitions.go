package wire

import "github.com/go-json-experiment/json/jsontext"

// DefinitionsRequest is the body of PUT /v1/definitions: the queues and webhooks
// that there are to be, in any order. Each element is a QueueDefinition or a
// DefinedWebhook. They are read one by one, so that all that
// is wrong can be told.
type DefinitionsRequest struct {
	Queues   []jsontext.Value `json:"queues,omitzero"`
	Webhooks []jsontext.Value `json:"webhooks,omitzero"`
}

// QueueDefinition is a queue that there is to be: a field of its policy that is
// left out has its default.
type QueueDefinition struct {
	Name            string      `json:"name"`
	DeadLetterQueue Opt[string] `json:"dead_letter_queue,omitzero"` // or delivery.dead_letter_queue
	PolicyUpdate
}

// DefinedQueue is a queue as GET /v1/definitions tells it.
type DefinedQueue struct {
	Name string `json:"name"`
	Policy
}

// Definitions answers GET /v1/definitions, sorted by name.
type Definitions struct {
	Queues   []DefinedQueue   `json:"queues"`
	Webhooks []DefinedWebhook `json:"webhooks"`
}

// DefinedWebhook is a webhook as PUT and GET /v1/definitions have it.
type DefinedWebhook struct {
	Name string `json:"name"`
	WebhookDefinition
}

// DefinitionChanges answers PUT /v1/definitions: what became of each queue and
// webhook named, or, with dry_run, what would.
type DefinitionChanges struct {
	Changes []DefinitionChange `json:"changes"`
}

// DefinitionChange tells of one queue or webhook.
type DefinitionChange struct {
	Kind   string       `json:"kind"` // queue, webhook
	Name   string       `json:"name"`
	Action string       `json:"action"` // create, update, unchanged
	Diff   []Difference `json:"diff"`   // create: of what has not its default
}

// What is defined, and what becomes of it.
const (
	KindQueue   = "queue"
	KindWebhook = "webhook"

	ActionCreate    = "create"
	ActionUpdate    = "update"
	ActionUnchanged = "unchanged"
)

// Difference is a field that changes. null is none.
type Difference struct {
	Path   string         `json:"path"` // delivery.max_attempts
	Before jsontext.Value `json:"before"`
	After  jsontext.Value `json:"after"`
}
