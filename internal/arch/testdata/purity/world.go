package purity

import (
	"context"           // want: imports context
	crand "crypto/rand" // want: imports crypto/rand
	"errors"
	"log/slog"     // want: imports log/slog
	"math/rand/v2" // want: imports math/rand/v2
	"net"          // want: imports net
	"os"           // want: imports os
	"path/filepath"
	"reflect" // want: imports reflect
	"runtime" // want: imports runtime
	"sync"
	"sync/atomic" // want: imports sync/atomic
	"unsafe"      // want: imports unsafe
)

func world(ctx context.Context) error {
	slog.Info("told")
	var b [1]byte
	_, _ = crand.Read(b[:])
	_, _ = os.ReadFile(filepath.Join(os.Getenv("HOME"), "x"))
	_, _ = net.LookupHost("localhost")
	_ = reflect.TypeOf(rand.Int()).Size() + unsafe.Sizeof(runtime.NumCPU())
	var n atomic.Int64
	n.Add(1)
	var once sync.Once // want: uses sync.Once
	once.Do(func() {})
	var mu sync.RWMutex // want: uses sync.RWMutex
	mu.Lock()
	return errors.Join(ctx.Err())
}
