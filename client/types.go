package client

import (
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// Messages: what is enqueued, leased and read. Payload is JSON, PayloadBytes anything else.
type (
	NewMessage      = wire.NewMessage
	Produced        = wire.Produced
	LeasedMessage   = wire.LeasedMessage
	MessageInfo     = wire.Message
	MessageList     = wire.MessageList
	Attempt         = wire.Attempt
	Dead            = wire.Dead
	Event           = wire.Event
	EventList       = wire.EventList
	Reschedule      = wire.Reschedule
	Lineage         = wire.Lineage
	MessageEdit     = wire.MessageEdit
	ImportMessage   = wire.ImportMessage
	ImportResponse  = wire.ImportResponse
	Explanation     = wire.Explanation
	EraseRequest    = wire.EraseRequest
	EraseKeyRequest = wire.EraseKeyRequest
	Erasable        = wire.Erasable
)

// Settling leases, one by one or many at once.
type (
	SettleResult        = wire.SettleResult
	AckRequest          = wire.AckRequest
	AckItem             = wire.AckItem
	RetryItem           = wire.RetryItem
	DeadLetterItem      = wire.DeadLetterItem
	ExtendItem          = wire.ExtendItem
	ReleaseItem         = wire.ReleaseItem
	AckOne              = wire.AckOne
	RetryOne            = wire.RetryOne
	DeadLetterOne       = wire.DeadLetterOne
	ExtendOne           = wire.ExtendOne
	ReleaseOne          = wire.ReleaseOne
	TransactionRequest  = wire.TransactionRequest
	TransactionProduce  = wire.TransactionProduce
	TransactionResponse = wire.TransactionResponse
)

// Queues with their policies, and what may need an operator. A PolicyUpdate says which fields it
// sets; a [Queue] is simpler.
type (
	QueueInfo           = wire.Queue
	QueueList           = wire.QueueList
	QueueStats          = wire.QueueStats
	Stats               = wire.Stats
	Policy              = wire.Policy
	PolicyUpdate        = wire.PolicyUpdate
	RetentionUpdate     = wire.RetentionUpdate
	DeliveryUpdate      = wire.DeliveryUpdate
	RateLimitUpdate     = wire.RateLimitUpdate
	DeduplicationUpdate = wire.DeduplicationUpdate
	Push                = wire.Push
	AttentionItem       = wire.AttentionItem
	WorkerInfo          = wire.Worker
	Webhook             = wire.Webhook
	WebhookDefinition   = wire.WebhookDefinition
	WebhookDelivery     = wire.WebhookDelivery
	WebhookList         = wire.WebhookList
	Definitions         = wire.Definitions
	DefinitionsRequest  = wire.DefinitionsRequest
	DefinitionChange    = wire.DefinitionChange
)

// Dead letters, what brings messages back, and tasks that do much of it.
type (
	DeadFilter       = wire.DeadFilter
	DeadList         = wire.DeadList
	DeadGroups       = wire.DeadGroups
	ReplayRequest    = wire.ReplayRequest
	ReplayEdit       = wire.ReplayEdit
	PurgeRequest     = wire.PurgeRequest
	DeadMoved        = wire.DeadMoved
	UndoRequest      = wire.UndoRequest
	UndoFilter       = wire.UndoFilter
	Undone           = wire.Undone
	ResurrectRequest = wire.ResurrectRequest
	Resurrected      = wire.Resurrected
	Task             = wire.Task
	TaskList         = wire.TaskList
)

// The cluster and its files.
type (
	Cluster     = wire.Cluster
	Node        = wire.Node
	NewNode     = wire.NewNode
	LogHead     = wire.LogHead
	LogSegments = wire.LogSegments
	Projections = wire.Projections
)

// Problem is what the server says of an error.
type Problem = wire.Problem

// Time is an instant in milliseconds, 0 for none. Its method Time returns a time.Time.
type Time = wire.Time

// TimeOf returns t as a Time.
func TimeOf(t time.Time) Time { return wire.TimeOf(t) }

// Opt is a field that can be left out (the zero Opt), be null, or have a value.
type Opt[T any] = wire.Opt[T]

// Some returns an Opt with a value.
func Some[T any](v T) Opt[T] { return wire.Some(v) }

// Null returns an Opt that is null.
func Null[T any]() Opt[T] { return wire.Null[T]() }

// Values of Produced.Status, and of Task.Status.
const (
	Enqueued  = wire.Enqueued
	Duplicate = wire.Duplicate

	TaskRunning   = wire.TaskRunning
	TaskCancelled = wire.TaskCancelled
	TaskCompleted = wire.TaskCompleted
	TaskFailed    = wire.TaskFailed
)
