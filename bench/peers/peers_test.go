package peers

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// TestPeers starts each peer, produces and takes some hundred messages, in
// batches and one by one, and checks that none is lost and none is left. It needs
// the peers' packages and a minute: PEERS=1, as make peers sets it.
func TestPeers(t *testing.T) {
	if os.Getenv("PEERS") == "" {
		t.Skip("starts other systems' servers: make peers, or PEERS=1")
	}
	for _, s := range All() {
		t.Run(s.Name(), func(t *testing.T) { tryOut(t, s) })
	}
}

func tryOut(t *testing.T, s system.System) {
	if missing := s.Missing(); missing != "" {
		t.Skip(missing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error("stop:", err)
		}
	})
	if err := s.Start(ctx, t.TempDir()); err != nil {
		t.Fatal("start:", err)
	}
	if len(s.PIDs()) == 0 {
		t.Error("no processes")
	}
	for _, c := range []load.Config{
		{Producers: 2, Batch: 100, Workers: 2, Take: 100, Size: 1024, Messages: 600},
		{Producers: 8, Batch: 1, Workers: 8, Take: 1, Size: 1024, Messages: 300},
	} {
		q, err := s.Fresh(ctx)
		if err != nil {
			t.Fatal("fresh:", err)
		}
		r, err := load.Run(ctx, q, c)
		if err != nil {
			t.Fatal("load:", err)
		}
		if r.TotalProduced < c.Messages || r.TotalAcked < r.TotalProduced || r.Lost != 0 {
			t.Errorf("batches of %d: produced %d, acked %d, lost %d",
				c.Batch, r.TotalProduced, r.TotalAcked, r.Lost)
		}
		counter, ok := q.(load.Counter)
		if !ok {
			continue
		}
		for {
			n, err := counter.Count(ctx)
			if err != nil {
				t.Fatal("count:", err)
			}
			if n == 0 {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%d messages are left", n)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}
