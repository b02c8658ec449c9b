package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what a Run saw. Rates and quantiles are of the time that was
// measured; the totals are of all of it, warm-up and draining too.
type Result struct {
	Seconds  float64 `json:"seconds"`  // that were measured
	Produced int64   `json:"produced"` // messages acknowledged meanwhile
	Acked    int64   `json:"acked"`    // messages taken and settled meanwhile

	ProduceRate float64 `json:"produce_per_second"`
	AckRate     float64 `json:"ack_per_second"`

	Produce  Quantiles `json:"produce_ms"`  // a call of Produce
	Delivery Quantiles `json:"delivery_ms"` // from when a message was sent or due to a worker
	Take     Quantiles `json:"take_ms"`     // a call of Take that got something, with the wait
	Ack      Quantiles `json:"ack_ms"`      // a call of Ack
	Cycle    Quantiles `json:"cycle_ms"`    // from when the oldest of an Ack was sent or due
	Late     Quantiles `json:"late_ms"`     // open loop: how late the generator itself was

	TotalProduced int64 `json:"total_produced"`
	TotalAcked    int64 `json:"total_acked"`
	Duplicates    int64 `json:"duplicates"` // delivered and acked more than once
	// Lost were produced and in the end not delivered, or not settled; -1: not waited for.
	Lost int64 `json:"lost"`
}

// Quantiles are of latencies, in milliseconds.
type Quantiles struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Histogram collects latencies from 1 µs to 5 minutes in three digits, for
// many goroutines.
type Histogram struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

// NewHistogram returns an empty one.
func NewHistogram() *Histogram {
	return &Histogram{h: hdrhistogram.New(1, int64(5*time.Minute/time.Microsecond), 3)}
}

// Add takes n latencies of d in.
func (h *Histogram) Add(d time.Duration, n int64) {
	us := min(max(d.Microseconds(), 1), h.h.HighestTrackableValue())
	h.mu.Lock()
	_ = h.h.RecordValues(us, n) // fails on values out of its range only
	h.mu.Unlock()
}

// Quantiles returns what was collected.
func (h *Histogram) Quantiles() Quantiles {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := func(p float64) float64 { return float64(h.h.ValueAtPercentile(p)) / 1000 }
	if h.h.TotalCount() == 0 {
		return Quantiles{}
	}
	return Quantiles{
		Count: h.h.TotalCount(), Mean: h.h.Mean() / 1000,
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: float64(h.h.Max()) / 1000,
	}
}
