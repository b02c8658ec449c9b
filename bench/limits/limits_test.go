package limits

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

func TestLimits(t *testing.T) {
	for _, s := range All() {
		t.Run(s.Name(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			t.Cleanup(func() {
				if err := s.Stop(); err != nil {
					t.Error("stop:", err)
				}
			})
			if err := s.Start(ctx, t.TempDir()); err != nil {
				t.Fatal("start:", err)
			}
			for _, batch := range []int{1, 100} {
				target, err := s.Fresh(ctx)
				if err != nil {
					t.Fatal("fresh:", err)
				}
				windows := 0
				r, err := system.Load(ctx, target, load.Config{
					Producers: 4, Batch: batch, Size: 1024, Messages: 200,
					Window: func(bool) { windows++ },
				})
				if err != nil {
					t.Fatal("load:", err)
				}
				if r.TotalProduced < 200 || windows != 2 {
					t.Errorf("batches of %d: produced %d, %d windows",
						batch, r.TotalProduced, windows)
				}
			}
		})
	}
}
