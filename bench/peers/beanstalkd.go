package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/beanstalkd/go-beanstalk"
	"golang.org/x/sync/errgroup"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// Beanstalkd is Debian's beanstalkd with a log that it syncs at each write (-f 0).
//
// Given to it: a connection for each producer and worker. The protocol has no
// batches, but the client pipelines what several goroutines call on one
// connection, so a batch is as many calls at once: round trips are shared, the
// server still syncs each job.
func Beanstalkd() system.System { return &beanstalkd{} }

type beanstalkd struct {
	server
	queues
	addr string
}

func (*beanstalkd) Name() string { return "beanstalkd" }

func (*beanstalkd) Durable() string {
	return "the job, and its deletion, is in the log, after fsync"
}

func (*beanstalkd) Missing() string { return system.Lacks("beanstalkd", "beanstalkd") }

func (s *beanstalkd) Start(ctx context.Context, dir string) error {
	ports, err := system.Ports(1)
	if err != nil {
		return err
	}
	s.addr = fmt.Sprintf("127.0.0.1:%d", ports[0])
	wal := filepath.Join(dir, "log")
	if err := os.Mkdir(wal, 0o755); err != nil {
		return err
	}
	s.proc, err = system.Run(dir, "beanstalkd", exec.Command("beanstalkd",
		"-l", "127.0.0.1", "-p", strconv.Itoa(ports[0]), "-b", wal, "-f", "0"))
	if err != nil {
		return err
	}
	return s.proc.Ready(ctx, func(context.Context) error {
		c, err := beanstalk.Dial("tcp", s.addr)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (s *beanstalkd) Stop() error {
	err := s.stop(syscall.SIGTERM)
	*s = beanstalkd{}
	return err
}

// Fresh leaves what an earlier queue held: beanstalkd deletes job by job only.
func (s *beanstalkd) Fresh(context.Context) (load.Target, error) {
	return &beanstalkTarget{addr: s.addr, name: s.next()}, nil
}

type beanstalkTarget struct{ addr, name string }

func (t *beanstalkTarget) Count(context.Context) (int, error) {
	c, err := beanstalk.Dial("tcp", t.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stats, err := beanstalk.NewTube(c, t.name).Stats()
	if errors.Is(err, beanstalk.ErrNotFound) {
		return 0, nil // a tube that nobody uses is gone with its last job
	}
	n := 0
	for _, state := range []string{"ready", "reserved", "delayed", "buried"} {
		jobs, _ := strconv.Atoi(stats["current-jobs-"+state])
		n += jobs
	}
	return n, err
}

func (t *beanstalkTarget) Producer(context.Context) (load.Producer, error) {
	c, err := beanstalk.Dial("tcp", t.addr)
	if err != nil {
		return nil, err
	}
	return &beanstalkProducer{c: c, tube: beanstalk.NewTube(c, t.name)}, nil
}

type beanstalkProducer struct {
	c    *beanstalk.Conn
	tube *beanstalk.Tube
}

func (p *beanstalkProducer) Produce(_ context.Context, batch []load.Message) error {
	return together(len(batch), func(i int) error {
		_, err := p.tube.Put(batch[i].Payload, 1024, 0, 2*time.Minute)
		return err
	})
}

// together calls f for each of n, at once.
func together(n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	var g errgroup.Group
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

func (p *beanstalkProducer) Close() error { return p.c.Close() }

func (t *beanstalkTarget) Worker(context.Context) (load.Worker, error) {
	c, err := beanstalk.Dial("tcp", t.addr)
	if err != nil {
		return nil, err
	}
	return &beanstalkWorker{c: c, tubes: beanstalk.NewTubeSet(c, t.name)}, nil
}

type beanstalkWorker struct {
	c     *beanstalk.Conn
	tubes *beanstalk.TubeSet
	last  int // how many there were
}

// Take waits for one, and requests as many more at once as there were last time,
// and ten.
func (w *beanstalkWorker) Take(_ context.Context, most int) ([]load.Delivery, error) {
	all := make([]load.Delivery, 1, most)
	ok, err := w.reserve(&all[0], time.Second)
	if !ok || err != nil {
		return nil, err
	}
	more := make([]load.Delivery, min(most-1, w.last+10))
	err = together(len(more), func(i int) error {
		_, err := w.reserve(&more[i], 0)
		return err
	})
	for _, d := range more {
		if d.Handle != nil {
			all = append(all, d)
		}
	}
	w.last = len(all)
	return all, err
}

func (w *beanstalkWorker) reserve(d *load.Delivery, wait time.Duration) (bool, error) {
	id, body, err := w.tubes.Reserve(wait)
	if errors.Is(err, beanstalk.ErrTimeout) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	*d = load.Delivery{Payload: body, Handle: id}
	return true, nil
}

func (w *beanstalkWorker) Ack(_ context.Context, done []load.Delivery) error {
	return together(len(done), func(i int) error { return w.c.Delete(done[i].Handle.(uint64)) })
}

func (w *beanstalkWorker) Close() error { return w.c.Close() }
