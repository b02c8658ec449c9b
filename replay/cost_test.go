package replay

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/projections"
)

// grown is a log of about so many bytes, as work leaves it: messages of 1 KiB
// that come, are leased and acked in entries of 64, a backlog, a checkpoint every
// few thousand entries, and one message that goes on for ever.
type grown struct {
	*live
	ids       []event.ID // some of the messages
	traveller event.ID
	travels   int
	events    int64
}

const (
	growBatch       = 64
	growBacklog     = 5_000
	growCheckpoints = 4_000 // entries
	growTravels     = 10
)

// apply is do without noting what a reader sees, which costs more than all else.
func (g *grown) apply(c *event.Command) event.Result {
	g.t.Helper()
	g.index++
	g.clock += 5
	e := &event.Entry{Rules: event.Rules, Time: g.clock, Commands: [][]byte{event.EncodeCommand(c)}}
	r, err := g.m.Apply(g.index, e.Encode())
	if err != nil || r[0].Problem != nil {
		g.t.Fatal(err, r[0].Problem)
	}
	if g.index%growCheckpoints == 0 {
		g.checkpoint()
	}
	return r[0]
}

// travel takes the traveller through one more attempt.
func (g *grown) travel() {
	g.t.Helper()
	r := g.apply(&event.Command{Lease: &event.Lease{Queues: []string{"travels"}, Max: 1, Worker: "slow"}})
	if len(r.Leased) == 0 {
		g.t.Fatal("the traveller is away")
	}
	g.apply(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{
		Op: event.OpRetry, Lease: r.Leased[0].Lease, Content: event.EncodeContent(&event.Content{Error: "not there yet"}),
	}}}})
	g.travels++
}

func grow(t *testing.T, bytes int64) *grown {
	t.Helper()
	g := &grown{live: startLive(t, 1, log.DefaultSegmentSize)}
	g.m = fsm.New(projections.New(), quietLog{g}, fsm.Options{})
	policy := event.DefaultPolicy()
	policy.MaxAttempts = 0
	for _, q := range []string{"jobs", "travels"} {
		g.apply(&event.Command{PutQueue: &event.PutQueue{Name: q, Policy: policy}})
	}
	g.traveller = g.apply(&event.Command{Produce: &event.Produce{Queue: "travels", Messages: []event.NewMessage{{Priority: 5}}}}).Produced[0].ID
	body := strings.Repeat("x", 1000)
	size := func() (n int64) {
		for _, s := range g.log.Segments() {
			n += s.Size
		}
		return n
	}
	waiting := 0
	for n := size(); n < bytes; n = size() {
		if n > bytes*int64(g.travels)/growTravels {
			g.travel()
		}
		p := &event.Produce{Queue: "jobs"}
		for i := range growBatch {
			p.Messages = append(p.Messages, event.NewMessage{
				Priority: 5, Size: 1024, DedupKey: event.Hash{1, byte(i), byte(g.index), byte(g.index >> 8), byte(g.index >> 16)},
				Content: event.EncodeContent(&event.Content{Payload: fmt.Appendf(nil, `"%016d%016d%s"`, g.index, i, body)}),
			})
		}
		made := g.apply(&event.Command{Produce: p}).Produced
		g.ids = append(g.ids, made[g.rng.IntN(len(made))].ID)
		if waiting += len(made); waiting <= growBacklog {
			continue
		}
		settle := &event.Settle{}
		for _, m := range g.apply(&event.Command{Lease: &event.Lease{Queues: []string{"jobs"}, Max: growBatch, Worker: "w"}}).Leased {
			settle.Items = append(settle.Items, event.SettleItem{Op: event.OpAck, Lease: m.Lease})
		}
		waiting -= len(settle.Items)
		g.apply(&event.Command{Settle: settle})
	}
	g.checkpoint()
	return g
}

// quietLog counts what is appended.
type quietLog struct{ g *grown }

func (q quietLog) Append(b *event.Block) error {
	q.g.events += int64(len(b.Events))
	return q.g.log.Append(b)
}

// quantiles of durations, which it sorts.
func quantiles(d []time.Duration) (p50, p99, most time.Duration) {
	slices.Sort(d)
	return d[len(d)/2], d[len(d)*99/100], d[len(d)-1]
}

// TestCostAgainstLogSize prints what history and at= cost in logs of several
// sizes: make history. By itself it does so for small ones, and only checks.
func TestCostAgainstLogSize(t *testing.T) {
	sizes := []string{"2", "20"}
	if s := os.Getenv("HISTORY_MB"); s != "" {
		sizes = strings.Fields(s)
	}
	t.Logf("| log | segments | events | history of one in 1,000 random messages, p50 / p99 | of one with %d attempts from end to end | of an id never seen | the first of all | at= of 30 random instants, p50 / max | blocks folded, at most |", growTravels)
	t.Log("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	var first time.Duration
	for i, text := range sizes {
		mb, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(text, func(t *testing.T) {
			g := grow(t, mb<<20)
			if err := g.log.Close(); err != nil { // writes the last side files
				t.Fatal(err)
			}
			d := g.open()
			ask := func(id event.ID, events int) time.Duration {
				t.Helper()
				begun := time.Now()
				h, err := d.Log.History(t.Context(), id)
				took := time.Since(begun)
				if err != nil || events == 0 && len(h) != 0 || events != 0 && (len(h) == 0 || len(h) > events) {
					t.Fatalf("%s: %d events, %v", id, len(h), err)
				}
				return took
			}
			cold := ask(g.ids[0], 3)
			var random, never []time.Duration
			for range 1000 {
				random = append(random, ask(g.ids[g.rng.IntN(len(g.ids))], 3))
				never = append(never, ask(event.NewID(g.clock-int64(g.rng.IntN(1000)), 1+uint64(g.rng.Int64N(int64(g.index))), event.MaxNumber), 0))
			}
			var travel []time.Duration
			for range 20 {
				travel = append(travel, ask(g.traveller, 1+2*growTravels+2))
			}
			var past []time.Duration
			var most uint64
			for range 30 {
				begun := time.Now()
				_, cost, err := d.StateAt(t.Context(), at(1+uint64(g.rng.Int64N(int64(g.index)))))
				if err != nil {
					t.Fatal(err)
				}
				past = append(past, time.Since(begun))
				most = max(most, cost.Blocks)
			}
			r50, r99, _ := quantiles(random)
			n50, _, _ := quantiles(never)
			t50, _, _ := quantiles(travel)
			p50, _, pMax := quantiles(past)
			short := func(d time.Duration) string {
				if d < time.Millisecond {
					return d.Round(time.Microsecond).String()
				}
				return d.Round(100 * time.Microsecond).String()
			}
			t.Logf("| %d MB | %d | %d | %s / %s | %s | %s | %s | %s / %s | %d |", mb, len(d.Log.Segments()), g.events,
				short(r50), short(r99), short(t50), short(n50), short(cold), short(p50), short(pMax), most)
			if most > growCheckpoints {
				t.Errorf("%d blocks were folded, a checkpoint lies behind each %d entries", most, growCheckpoints)
			}
			// The log's size must not be what a history costs: ten times the log
			// may cost a few filters more.
			if i == 0 {
				first = r50
			} else if r50 > 20*first+5*time.Millisecond {
				t.Errorf("history costs %s, and %s in a log of %s MB", r50, first, sizes[0])
			}
		})
	}
}
