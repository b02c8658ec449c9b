package limits

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// Raft is hashicorp/raft on three processes over TCP, with raft-wal and a state
// machine that does nothing. The leader's own process brings the commands, one a
// Produce, and groups them into entries within the bounds of qlogd's proposer: what
// waits goes as soon as there is room. To let it wait for as much as is under way,
// as qlogd does, is a fifth better for lone commands and worse for batches.
func Raft() system.System {
	return &children{
		name: "limit-raft-3", n: 3,
		durable: "the message is in the Raft log of a majority, after fsync there",
		args: func(dir string, control []string) ([][]string, error) {
			peers, err := system.Addrs(len(control))
			if err != nil {
				return nil, err
			}
			var all [][]string
			for i, c := range control {
				home := filepath.Join(dir, "r"+strconv.Itoa(i+1))
				if err := os.Mkdir(home, 0o755); err != nil {
					return nil, err
				}
				args := []string{"raft", c, home, strconv.Itoa(i), strings.Join(peers, ",")}
				all = append(all, args)
			}
			return all, nil
		},
	}
}

// Bounds as in qlogd's raft.Limits.
const (
	groupBytes    = 1 << 20
	groupCommands = 1024
	flyingEntries = 32
	flyingBytes   = 8 << 20
)

func raftChild(args []string) error {
	self, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	log, err := wal.Open(args[1], wal.WithSegmentSize(32<<20))
	if err != nil {
		return err
	}
	peers := strings.Split(args[3], ",")
	addr, err := net.ResolveTCPAddr("tcp", peers[self])
	if err != nil {
		return err
	}
	quiet := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr})
	trans, err := raft.NewTCPTransportWithConfig(peers[self], addr, &raft.NetworkTransportConfig{
		Logger: quiet, MaxPool: 3, Timeout: 10 * time.Second, MaxRPCsInFlight: 1,
	})
	if err != nil {
		return err
	}
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(peers[self])
	c.Logger, c.MaxAppendEntries = quiet, 16
	c.SnapshotInterval, c.SnapshotThreshold = math.MaxInt64/4, math.MaxUint64
	snaps := raft.NewInmemSnapshotStore()
	var cluster raft.Configuration
	for _, p := range peers {
		cluster.Servers = append(cluster.Servers,
			raft.Server{ID: raft.ServerID(p), Address: raft.ServerAddress(p)})
	}
	if err := raft.BootstrapCluster(c, log, log, snaps, trans, cluster); err != nil {
		return err
	}
	r, err := raft.NewRaft(c, nothing{}, log, log, snaps, trans)
	if err != nil {
		return err
	}
	p := &proposer{raft: r, wake: make(chan struct{}, 1),
		flights: make(chan flight, flyingEntries), landed: make(chan int, flyingEntries)}
	go p.run()
	go p.reap()
	return serve(args[0], func() error {
		if r.State() != raft.Leader {
			return errors.New("another one leads")
		}
		return nil
	}, p)
}

// nothing is a state machine that has no state.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                     { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error)     { return nil, errors.New("no state") }
func (nothing) Restore(snapshot io.ReadCloser) error    { return snapshot.Close() }
func (nothing) ApplyBatch(logs []*raft.Log) (all []any) { return make([]any, len(logs)) }

// proposer is a Target that groups commands into entries.
type proposer struct {
	none
	raft    *raft.Raft
	wake    chan struct{}
	flights chan flight // in their order
	landed  chan int    // their bytes

	mu      sync.Mutex
	waiting []*command
}

type command struct {
	data []byte
	done chan error
}

type flight struct {
	future raft.ApplyFuture
	group  []*command
	bytes  int
}

func (p *proposer) run() {
	entries, bytes := 0, 0
	for {
		select {
		case <-p.wake:
		case n := <-p.landed:
			entries, bytes = entries-1, bytes-n
		}
		for entries < flyingEntries && bytes < flyingBytes {
			group, size := p.take()
			if len(group) == 0 {
				break
			}
			data := make([]byte, 0, size)
			for _, c := range group {
				data = append(binary.AppendUvarint(data, uint64(len(c.data))), c.data...)
			}
			entries, bytes = entries+1, bytes+size
			p.flights <- flight{p.raft.Apply(data, 0), group, size}
		}
	}
}

// take returns the next group and its size, encoded at most.
func (p *proposer) take() ([]*command, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size := 0, 0
	for ; n < min(len(p.waiting), groupCommands); n++ {
		next := len(p.waiting[n].data) + binary.MaxVarintLen32
		if n > 0 && size+next > groupBytes {
			break
		}
		size += next
	}
	group := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	return group, size
}

func (p *proposer) reap() {
	for f := range p.flights {
		err := f.future.Error()
		for _, c := range f.group {
			c.done <- err
		}
		p.landed <- f.bytes
	}
}

func (p *proposer) Producer(context.Context) (load.Producer, error) {
	return &proposing{p: p, done: make(chan error, 1)}, nil
}

type proposing struct {
	p    *proposer
	data []byte
	done chan error
}

func (o *proposing) Produce(_ context.Context, batch []load.Message) error {
	o.data = o.data[:0]
	for _, m := range batch {
		o.data = append(o.data, m.Payload...)
	}
	o.p.mu.Lock()
	o.p.waiting = append(o.p.waiting, &command{o.data, o.done})
	o.p.mu.Unlock()
	select {
	case o.p.wake <- struct{}{}:
	default:
	}
	return <-o.done
}

func (*proposing) Close() error { return nil }
