package eventlog

import (
	"github.com/qlogd/qlogd/event"
)

// Find returns the newest event with an alias (a deduplication hash, or that of
// a request) at index from or later; nil if there is none.
func (l *Log) Find(alias event.Hash, from uint64) (*event.Event, error) {
	ref, ok, err := l.raw.FindAlias([16]byte(alias), from)
	if err != nil || !ok {
		return nil, err
	}
	return l.Event(event.Ref(ref))
}
