package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
)

// Whoever loses a message for want of a dead-letter queue can read it in the
// server's log, also where nobody settled it: its lease ran out, or its time.
func TestDiscardsAreWarnedOf(t *testing.T) {
	var out bytes.Buffer
	d := newDiscards(slog.New(slog.NewTextHandler(&out, nil)))
	of := func(queue string, r event.Reason) event.Event {
		return event.Event{Type: event.Discarded, Queue: queue, Reason: r, Subject: event.NewID(1, 7, 0)}
	}
	d.count([]event.Event{
		of("a", event.ReasonMaxAttempts), of("a", event.ReasonMaxAttempts), of("b", event.ReasonExpired),
		of("c", event.ReasonPurged), of("c", event.ReasonDeleted), {Type: event.Acked, Queue: "c"},
	})
	d.tell()
	d.tell()
	for _, want := range []string{"queue=a reason=max_attempts count=2", "queue=b reason=expired count=1"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%q is not told once:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "queue=c") {
		t.Errorf("what was asked to go is no trouble:\n%s", out.String())
	}
}
