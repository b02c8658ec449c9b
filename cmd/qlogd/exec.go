package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/client"
)

// execWorker is one run of qlogd work. Its exported fields are the flags.
type execWorker struct {
	Exec         string
	Concurrency  int `default:"1"`
	Lease, Grace time.Duration
	Kind         []string
	Worker       string

	c                   request
	server              target
	stop                context.CancelCauseFunc // stops the worker
	running             sync.WaitGroup
	mu                  sync.Mutex // of the streams, which commands share
	acked, failed, dead atomic.Int64
}

// Exit codes of a command: EX_DATAERR of sysexits.h dead-letters its message. With the others a shell
// says that it cannot run what it is given, which is no message's fault.
const (
	exitDead      = 65
	exitCannotRun = 126
	exitNotFound  = 127
)

var workCommand = plain("work", func(c request, f *execWorker) error {
	if strings.TrimSpace(f.Exec) == "" {
		return usagef("--exec is needed: the command that processes a message")
	}
	if f.Concurrency < 1 {
		return usagef("--concurrency must be at least 1")
	}
	return c.ask(f.run)
}, (*app).addrFlag, (*app).authFlags, (*app).contextFlag, func(_ *app, cmd *cobra.Command) {
	setDefault(cmd, "worker", hostname())
	setDefault(cmd, "grace", "30s")
})

// hostname is the name under which commands lease.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "qlogd-cli"
	}
	return host
}

// run works until the first signal, then lets the commands that run end.
func (f *execWorker) run(c request) error {
	f.c = c
	var err error
	if f.server, err = c.reached(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program
	ctx, f.stop = context.WithCancelCause(ctx)
	defer f.stop(nil)
	defer c.Close()
	err = client.NewWorker(c.Client, c.args[0], f.handle, client.WorkerOptions{
		Concurrency: f.Concurrency, Prefetch: -1, Lease: f.Lease, Kinds: f.Kind, Name: f.Worker,
		More: c.args[1:], Grace: cmp.Or(f.Grace, -1),
		Logger: slog.New(slog.NewTextHandler(c.stderr, nil)),
	}).Run(ctx)
	f.running.Wait() // until none is left of the commands that it has given up
	fmt.Fprintf(c.stderr, "%s acked, %d failed, %d dead-lettered\n",
		messages(f.acked.Load()), f.failed.Load(), f.dead.Load())
	if broken, ok := errors.AsType[*exitError](context.Cause(ctx)); ok {
		err = errors.Join(err, broken)
	}
	return err
}

// handle runs the command for a message.
func (f *execWorker) handle(ctx context.Context, m *client.Message) error {
	f.running.Add(1)
	defer f.running.Done()
	cmd := exec.CommandContext(ctx, "sh", "-c", f.Exec)
	cmd.Stdin = strings.NewReader(string(m.Bytes()))
	cmd.Env = append(os.Environ(), "QLOGD_ADDR="+f.server.Addr, "QLOGD_TOKEN="+f.server.Token,
		"QLOGD_TOKEN_FILE="+f.server.TokenFile, "QLOGD_CA_CERT="+f.server.CACert,
		"QLOGD_MESSAGE_ID="+m.ID, "QLOGD_LEASE_ID="+m.LeaseID,
		"QLOGD_QUEUE="+m.Queue, "QLOGD_KEY="+m.Key, "QLOGD_KIND="+m.Kind,
		"QLOGD_CONTENT_TYPE="+m.ContentType,
		"QLOGD_ATTEMPT="+strconv.FormatInt(m.Attempt, 10))
	said := &tail{to: &stream{&f.mu, f.c.stderr}}
	cmd.Stdout, cmd.Stderr = &stream{&f.mu, f.c.stdout}, said
	// A group of its own: ctrl-C stops the worker, not what it has begun. It ends with the lease
	// or the grace, and then all of it does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var killAt time.Time
	cmd.Cancel = func() error {
		killAt = time.Now().Add(killAfter)
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = killAfter
	err := cmd.Run()
	if !killAt.IsZero() {
		killGroup(cmd.Process.Pid, killAt)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it exited with 0; what it left behind still has its output open
	}
	switch exit, _ := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		f.acked.Add(1)
		return nil
	case exit != nil && exit.ExitCode() == exitDead:
		f.dead.Add(1)
		return client.DeadLetter(said.explain(err))
	case exit != nil && (exit.ExitCode() == exitCannotRun || exit.ExitCode() == exitNotFound):
		f.stop(exitf(exitFailed, "the command cannot be run: %w", err))
		return client.Snooze(0)
	}
	f.failed.Add(1)
	return said.explain(err)
}

// killAfter is how long a command has to end after SIGTERM.
const killAfter = 5 * time.Second

// killGroup waits until no process of a group is left, and kills those that are at a time.
func killGroup(leader int, at time.Time) {
	for syscall.Kill(-leader, 0) == nil && time.Now().Before(at) {
		time.Sleep(20 * time.Millisecond)
	}
	_ = syscall.Kill(-leader, syscall.SIGKILL)
}

// stream is one that several commands write to.
type stream struct {
	mu *sync.Mutex
	to io.Writer
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(p)
}

// tail passes on what a command writes to stderr, and keeps the end of it for the error.
type tail struct {
	to   io.Writer
	last []byte
}

// maxTail is how much of a command's stderr is kept with an error.
const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-maxTail):]
	return t.to.Write(p)
}

// explain returns an error with what the command has written.
func (t *tail) explain(err error) error {
	if text := strings.TrimSpace(strings.ToValidUTF8(string(t.last), "?")); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
