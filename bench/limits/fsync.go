package limits

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// Fsync is one file that all producers append to: what comes while one group is
// being synced is the next group.
func Fsync() system.System {
	return &children{
		name: "limit-fsync", durable: "the message is in a file, after fdatasync", n: 1,
		args: func(dir string, control []string) ([][]string, error) {
			return [][]string{{"fsync", control[0], filepath.Join(dir, "appended")}}, nil
		},
	}
}

func fsyncChild(args []string) error {
	f, err := os.OpenFile(args[1], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	a := &appender{f: f, wake: make(chan struct{}, 1), next: &group{done: make(chan struct{})}}
	go a.run()
	return serve(args[0], func() error { return nil }, a)
}

// appender is a Target that appends and syncs in groups.
type appender struct {
	none
	f    *os.File
	wake chan struct{}

	mu   sync.Mutex
	next *group // gathers while another is being written
}

type group struct {
	data []byte
	err  error
	done chan struct{} // closed when it is synced
}

func (a *appender) run() {
	var free []byte
	for range a.wake {
		a.mu.Lock()
		g := a.next
		a.next = &group{data: free, done: make(chan struct{})}
		a.mu.Unlock()
		if _, g.err = a.f.Write(g.data); g.err == nil {
			g.err = syscall.Fdatasync(int(a.f.Fd()))
		}
		free = g.data[:0]
		close(g.done)
	}
}

func (a *appender) Producer(context.Context) (load.Producer, error) { return appending{a}, nil }

type appending struct{ *appender }

func (a appending) Produce(_ context.Context, batch []load.Message) error {
	a.mu.Lock()
	g := a.next
	for _, m := range batch {
		g.data = append(g.data, m.Payload...)
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
	<-g.done
	return g.err
}

func (appending) Close() error { return nil }
