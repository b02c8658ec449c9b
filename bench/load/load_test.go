package load

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a queue in memory that can lose and repeat.
type fake struct {
	mu       sync.Mutex
	waiting  [][]byte
	arrived  chan struct{}
	most     int64 // that ever waited or were in hand
	inside   int64
	keys     map[string]int
	lose     int64 // every so many is lost; 0 none
	late     bool  // what is lost comes when its lease has run out
	repeat   int64 // every so many comes twice
	n        atomic.Int64
	fail     error
	takes    time.Duration // a batch
	produced int64
}

func newFake() *fake { return &fake{arrived: make(chan struct{}, 1), keys: map[string]int{}} }

func (f *fake) Producer(context.Context) (Producer, error) { return fakeClient{f}, nil }
func (f *fake) Worker(context.Context) (Worker, error)     { return fakeClient{f}, nil }

type fakeClient struct{ *fake }

func (f fakeClient) Close() error { return nil }

func (f fakeClient) Produce(_ context.Context, batch []Message) error {
	time.Sleep(f.takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	for _, m := range batch {
		f.keys[m.Key]++
		f.inside++
		f.produced++
		n := f.n.Add(1)
		if f.lose > 0 && n%f.lose == 0 {
			if payload := bytes.Clone(m.Payload); f.late {
				time.AfterFunc(30*time.Second, func() {
					f.mu.Lock()
					defer f.mu.Unlock()
					f.waiting = append(f.waiting, payload)
					f.signal()
				})
			}
			continue
		}
		f.waiting = append(f.waiting, bytes.Clone(m.Payload))
		if f.repeat > 0 && n%f.repeat == 0 {
			f.waiting = append(f.waiting, bytes.Clone(m.Payload))
		}
	}
	f.most = max(f.most, f.inside)
	f.signal()
	return nil
}

func (f fakeClient) signal() {
	select {
	case f.arrived <- struct{}{}:
	default:
	}
}

func (f fakeClient) Take(ctx context.Context, most int) ([]Delivery, error) {
	for {
		f.mu.Lock()
		n := min(most, len(f.waiting))
		var out []Delivery
		for _, p := range f.waiting[:n] {
			out = append(out, Delivery{Payload: p})
		}
		f.waiting = f.waiting[n:]
		if len(f.waiting) > 0 {
			f.signal()
		}
		f.mu.Unlock()
		if n > 0 {
			return out, nil
		}
		select {
		case <-f.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f fakeClient) Ack(_ context.Context, done []Delivery) error {
	f.mu.Lock()
	f.inside -= int64(len(done))
	f.mu.Unlock()
	return nil
}

func TestCycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = time.Millisecond
		var windows []bool
		r, err := Run(t.Context(), f, Config{
			Producers: 4, Batch: 7, Workers: 3, Take: 5, Size: 100, Keys: 9, Backlog: 100,
			Warmup: 5 * time.Millisecond, Duration: 30 * time.Millisecond,
			Window: func(begins bool) { windows = append(windows, begins) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Lost != 0 || r.Duplicates != 0 || r.TotalProduced != f.produced ||
			r.TotalAcked != f.produced || r.Acked == 0 {
			t.Errorf("%d were produced: %+v", f.produced, r)
		}
		if f.most > 100 {
			t.Errorf("%d were on their way, of 100", f.most)
		}
		if len(f.keys) != 9 {
			t.Errorf("%d keys", len(f.keys))
		}
		if len(windows) != 2 || !windows[0] || windows[1] {
			t.Errorf("windows %v", windows)
		}
	})
}

func TestMessages(t *testing.T) {
	f := newFake()
	r, err := Run(t.Context(), f, Config{Producers: 3, Batch: 10, Size: MinSize, Messages: 1234})
	if err != nil {
		t.Fatal(err)
	}
	if f.produced != 1234 || r.Produced != 1234 || r.Lost != -1 {
		t.Errorf("%d: %+v", f.produced, r)
	}
}

func TestDuplicates(t *testing.T) {
	f := newFake()
	f.repeat = 10
	r, err := Run(t.Context(), f, Config{
		Producers: 1, Batch: 10, Workers: 1, Take: 1000, Size: 64, Messages: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	// The very last repeat may come after all have been seen.
	if r.Lost != 0 || r.Duplicates < 99 {
		t.Errorf("%+v", r)
	}
}

// TestLost sees that what never comes is told, and that what only comes again
// when the lease of a delivery ends that nobody got, its server having died, is not.
func TestLost(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.lose, f.late = 10, late
			want := int64(10)
			if late {
				want = 0
			}
			r, err := Run(t.Context(), f, Config{
				Producers: 1, Batch: 10, Workers: 2, Take: 10, Size: 64, Messages: 100,
			})
			if err != nil || r.Lost != want || r.TotalAcked != 100-want {
				t.Errorf("%+v, %v; want %d lost", r, err, want)
			}
		})
	}
}

// TestUnsettled sees that what the target still holds in the end is told.
func TestUnsettled(t *testing.T) {
	f := &holding{fake: newFake(), left: []int{7, 3, 0}}
	r, err := Run(t.Context(), f, Config{
		Producers: 1, Batch: 10, Workers: 1, Take: 10, Size: 64, Messages: 100,
	})
	if err != nil || r.Lost != 0 || len(f.left) != 0 {
		t.Errorf("%+v, %v, %v", r, err, f.left)
	}
}

type holding struct {
	*fake
	left []int
}

func (h *holding) Count(context.Context) (int, error) {
	n := h.left[0]
	h.left = h.left[1:]
	return n, nil
}

func TestRate(t *testing.T) {
	f := newFake()
	r, err := Run(t.Context(), f, Config{Producers: 2, Batch: 1, Workers: 1, Take: 10, Size: 64,
		Rate: 1000, Messages: 50, Duration: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if r.TotalProduced != 50 || r.Lost != 0 || r.Late.Count == 0 {
		t.Errorf("%+v", r)
	}
}

func TestFails(t *testing.T) {
	f := newFake()
	f.fail = errors.New("no")
	_, err := Run(t.Context(), f, Config{
		Producers: 2, Batch: 1, Workers: 2, Take: 1, Size: 64, Duration: time.Minute,
	})
	if !errors.Is(err, f.fail) {
		t.Error(err)
	}
	for _, c := range []Config{
		{}, {Producers: 1, Batch: 1, Size: MinSize - 1, Duration: 1},
		{Producers: 1, Size: 64, Duration: 1},
		{Workers: 1, Take: 1}, {Producers: 1, Batch: 1001, Size: 64, Duration: 1},
	} {
		if _, err := Run(t.Context(), f, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

func TestPoll(t *testing.T) {
	r, err := Poll(t.Context(), newFake(), Config{Size: 100, Duration: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.Acked == 0 || r.Delivery.Count != r.Acked {
		t.Errorf("%+v", r)
	}
}

// TestRandom sees to it that no two payloads share more than their beginning.
func TestRandom(t *testing.T) {
	m := newMaker(1, 1024, 100, 0, 0)
	first := bytes.Clone(m.next(1, 0, 1)[0].Payload[MinSize:])
	for seq := uint64(1); seq < 20_000; seq += 100 {
		for _, got := range m.next(100, seq, 2) {
			if bytes.Equal(got.Payload[MinSize:], first) {
				t.Fatalf("number %d is the first again", seq)
			}
		}
	}
	if stamp, seq, ok := origin(1, m.next(1, 77, 5)[0].Payload); !ok || stamp != 5 || seq != 77 {
		t.Error(stamp, seq, ok)
	}
	if _, _, ok := origin(2, m.next(1, 77, 5)[0].Payload); ok {
		t.Error("another Run's")
	}
}

func TestSeen(t *testing.T) {
	var s seen
	for _, n := range []uint64{0, 63, 64, 65535, 65536, 1 << 22} {
		if !s.add(n) || s.add(n) {
			t.Error(n)
		}
	}
}
