package main

import (
	"context"
	"crypto/hmac"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/bench/qlogd"
	"github.com/qlogd/qlogd/bench/system"
	"github.com/qlogd/qlogd/client"
)

const hookSecret = "bench-secret-0123456789"

// hooks measures webhooks in: signed ones of a kibibyte, each a request of its
// own, into qlogd beside a bare net/http server that checks the signature and does
// nothing else; and how long one takes until a waiting worker has it.
func hooks(args []string) error {
	fs := flag.NewFlagSet("hooks", flag.ContinueOnError)
	bin := fs.String("bin", "../bin/qlogd", "the program to measure")
	tmp := fs.String("dir", os.TempDir(), "where data directories are made, and removed again")
	bare := fs.String("bare", "", "be the bare server, at this address")
	h := &hooksBench{}
	fs.IntVar(&h.size, "size", 1024, "bytes of a body")
	fs.IntVar(&h.senders, "senders", 64, "connections, each with one request in hand")
	fs.IntVar(&h.rounds, "rounds", 3, "how often each is measured, in turns")
	fs.IntVar(&h.rate, "rate", 500, "webhooks a second while the time to a worker is measured")
	fs.DurationVar(&h.warmup, "warmup", time.Second, "before each window")
	fs.DurationVar(&h.window, "window", 4*time.Second, "what is measured")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *bare != "" {
		return serveBare(*bare)
	}
	var err error
	if h.bin, err = filepath.Abs(*bin); err != nil {
		return err
	}
	if h.dir, err = os.MkdirTemp(*tmp, "qlogd-hooks-"); err != nil {
		return err
	}
	defer os.RemoveAll(h.dir)
	h.body = []byte(`{"zen":"` + strings.Repeat("z", max(h.size-10, 0)) + `"}`)
	h.signature = qlogd.Sign(hookSecret, h.body)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return h.run(ctx)
}

type hooksBench struct {
	bin, dir              string
	size, senders, rounds int
	rate                  int
	warmup, window        time.Duration
	body                  []byte
	signature             string
}

func (h *hooksBench) run(ctx context.Context) error {
	rates := map[string][]float64{}
	for round := range h.rounds {
		for _, nodes := range []int{0, 1, 3} {
			name := map[int]string{0: "net/http alone", 1: "qlogd, 1 node", 3: "qlogd, 3 nodes"}[nodes]
			r, note, err := h.measure(ctx, nodes)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rates[name] = append(rates[name], r)
			fmt.Printf("round %d  %-15s %8.0f/s  %s\n", round+1, name, r, note)
		}
	}
	base := median(rates["net/http alone"])
	fmt.Printf("\n%-15s %10s %6s\n", "", "webhooks/s", "ratio")
	for _, name := range []string{"net/http alone", "qlogd, 1 node", "qlogd, 3 nodes"} {
		fmt.Printf("%-15s %10.0f %6.2f\n", name, median(rates[name]), median(rates[name])/base)
	}
	fmt.Println()
	for _, nodes := range []int{1, 3} {
		took, err := h.latency(ctx, nodes)
		if err != nil {
			return err
		}
		fmt.Printf("%d node(s): from sending to a waiting worker at %d/s: p50 %s, p99 %s, longest %s of %d\n", nodes, h.rate,
			quantile(took, 0.5), quantile(took, 0.99), took[len(took)-1].Round(10*time.Microsecond), len(took))
	}
	return nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)].Round(10 * time.Microsecond)
}

// measure sends as fast as it goes to servers of so many nodes; 0 is the bare one.
func (h *hooksBench) measure(ctx context.Context, nodes int) (rate float64, note string, err error) {
	const path = "/hook/bench"
	var urls []string
	var stop func()
	var servers *qlogd.Servers
	if nodes == 0 {
		var url string
		if url, stop, err = startBare(ctx); err != nil {
			return 0, "", err
		}
		urls = []string{url}
	} else {
		if servers, err = h.start(ctx, nodes); err != nil {
			return 0, "", err
		}
		stop = func() { _ = servers.Stop(); _ = os.RemoveAll(filepath.Join(h.dir, "run")) }
		urls = servers.URLs()
	}
	defer stop()
	var count atomic.Int64
	ctx, cancel := context.WithTimeout(ctx, h.warmup+h.window)
	defer cancel()
	failed := make(chan error, h.senders)
	var all sync.WaitGroup
	for i := range h.senders {
		all.Go(func() {
			s, err := qlogd.NewSender(urls[i%len(urls)], path)
			if err != nil {
				failed <- err
				return
			}
			defer s.Close()
			for ctx.Err() == nil {
				if err := s.Send(h.body, h.signature, "x"); err != nil {
					failed <- err
					return
				}
				count.Add(1)
			}
		})
	}
	time.Sleep(h.warmup)
	from, begun := count.Load(), time.Now()
	if servers != nil {
		time.Sleep(h.window / 2)
		c, err := servers.Client()
		if err != nil {
			return 0, "", err
		}
		if q, err := c.Queue(ctx, "hooks"); err == nil {
			note = fmt.Sprintf("depth in the middle %d", q.Stats.Depth)
		}
	}
	<-ctx.Done()
	rate = float64(count.Load()-from) / time.Since(begun).Seconds()
	all.Wait()
	select {
	case err := <-failed:
		return 0, "", err
	default:
		return rate, note, nil
	}
}

// start starts nodes with a webhook into the queue hooks.
func (h *hooksBench) start(ctx context.Context, nodes int) (*qlogd.Servers, error) {
	s, err := qlogd.Start(ctx, filepath.Join(h.dir, "run"), qlogd.Options{Bin: h.bin, Nodes: nodes, Env: []string{"HOOK_SECRET=" + hookSecret}})
	if err != nil {
		return nil, err
	}
	c, err := s.Client()
	if err == nil {
		_, _, err = c.PutQueue(ctx, "hooks", wire.PolicyUpdate{})
	}
	if err == nil {
		_, _, err = c.PutWebhook(ctx, "bench", wire.WebhookDefinition{
			Queue: "hooks", VerifyHMAC: &wire.VerifyHMAC{Scheme: "github", SecretEnv: wire.Strings{"HOOK_SECRET"}},
		})
	}
	if err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

// latency measures how long a webhook takes from its sending until a worker that
// waits has it, sorted.
func (h *hooksBench) latency(ctx context.Context, nodes int) ([]time.Duration, error) {
	servers, err := h.start(ctx, nodes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = servers.Stop(); _ = os.RemoveAll(filepath.Join(h.dir, "run")) }()
	c, err := servers.Client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	sent, took := map[string]time.Time{}, []time.Duration{}
	var workers, senders sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for ctx.Err() == nil {
				got, err := c.Lease(ctx, "hooks", client.LeaseOptions{Max: 1, Wait: 5 * time.Second})
				now := time.Now()
				if err != nil || len(got) == 0 {
					continue
				}
				mu.Lock()
				if at, ok := sent[got[0].Headers["x-github-delivery"]]; ok {
					took = append(took, now.Sub(at))
				}
				mu.Unlock()
				_, _ = c.Ack(ctx, "hooks", got[0].LeaseID)
			}
		})
	}
	begun := time.Now()
	failed := make(chan error, 16)
	for i := range 16 {
		senders.Go(func() {
			s, err := qlogd.NewSender(servers.URLs()[i%nodes], "/hook/bench")
			if err != nil {
				failed <- err
				return
			}
			defer s.Close()
			every := time.Second * 16 / time.Duration(h.rate)
			for n := 0; time.Since(begun) < h.warmup+h.window; n++ {
				time.Sleep(time.Until(begun.Add(every*time.Duration(n) + every*time.Duration(i)/16)))
				id := fmt.Sprint(i, "-", n)
				if time.Since(begun) > h.warmup {
					mu.Lock()
					sent[id] = time.Now()
					mu.Unlock()
				}
				if err := s.Send(h.body, h.signature, id); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	senders.Wait()
	time.Sleep(200 * time.Millisecond)
	cancel()
	workers.Wait()
	select {
	case err := <-failed:
		return nil, err
	default:
	}
	if len(took) == 0 || len(took) < len(sent)*99/100 {
		return nil, fmt.Errorf("%d of %d came", len(took), len(sent))
	}
	slices.Sort(took)
	return took, nil
}

// startBare starts the bare server as a process of its own, as qlogd is one.
func startBare(ctx context.Context) (url string, stop func(), err error) {
	addrs, err := system.Addrs(1)
	if err != nil {
		return "", nil, err
	}
	addr := addrs[0]
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "hooks", "-bare", addr)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return "http://" + addr, stop, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			stop()
			return "", nil, err
		}
	}
}

// serveBare checks signatures, and that is all.
func serveBare(addr string) error {
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || !hmac.Equal([]byte(qlogd.Sign(hookSecret, body)), []byte(r.Header.Get("X-Hub-Signature-256"))) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"ok":true,"queued":true}`)
	}))
}
