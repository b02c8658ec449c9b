package main

import "github.com/qlogd/qlogd/event"

// reader gives the api a state in its own words: its Messages says whether the
// queue is there, the state's whether there are more.
type reader struct{ stateReader }

// liveReader is the live state's: its now is the log's, which in a copy of the
// past lies behind the wall's time.
type liveReader struct {
	reader
	now interface{ Clock() int64 }
}

// Now is the log's time at this instant, Unix ms.
func (r liveReader) Now() int64 { return max(r.Clock(), r.now.Clock()) }

type stateReader interface {
	Queue(name string) (event.QueueView, bool)
	Queues() []event.QueueView
	Webhook(name string) (event.WebhookView, bool)
	Webhooks() []event.WebhookView
	Message(id event.ID) (event.MessageView, bool)
	Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool)
	Leasable(queue string, kinds []string) int
	Dead(queue string, f event.DeadFilter) ([]event.MessageView, bool)
	DeadCount(queue string) int64
	Lane(queue, key string) (event.LaneView, bool)
	Task(id event.ID) (event.TaskView, bool)
	Tasks() []event.TaskView
	Clock() int64
	Index() uint64
}

// Messages implements api.State.
func (r reader) Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool) {
	if _, ok := r.Queue(queue); !ok {
		return nil, false
	}
	out, _ := r.stateReader.Messages(queue, f)
	return out, true
}
