package api

import (
	"context"
	"log/slog"

	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
)

// newEraser returns what carries erasures out for a cluster of the one node that there is.
func (m *machine) newEraser() *erasure.Eraser {
	disk := memdisk.New()
	err := disk.MkdirAll("/data")
	if err == nil {
		m.eraser, err = erasure.New(erasure.Options{
			Log: m.log, State: m.Machine, FS: disk, DataDir: "/data", Propose: m.Propose,
			Self:     func() string { return "n1/a" },
			Members:  func() []string { return []string{"n1/a"} },
			Fetched:  func() error { return nil },
			PurgeLog: func(context.Context, uint64) error { return nil },
			Logger:   slog.New(slog.DiscardHandler),
		})
	}
	if err != nil {
		panic(err)
	}
	return m.eraser
}
