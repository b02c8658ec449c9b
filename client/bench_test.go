package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
)

// quick is a server that answers produce, lease and settle calls at once, with as
// little work as it can: what is measured beside it is the client's, net/http's
// and the kernel's.
type quick struct {
	ln       net.Listener
	payload  []byte // JSON, what it leases
	mu       sync.Mutex
	answers  map[string][]byte
	requests atomic.Int64
}

func newQuick(tb testing.TB, payload []byte) *quick {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	q := &quick{ln: ln, payload: payload, answers: map[string][]byte{}}
	tb.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go q.serve(conn)
		}
	}()
	return q
}

func (q *quick) url() string { return "http://" + q.ln.Addr().String() }

func (q *quick) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	var body []byte
	for {
		path, size, msgpack := "", 0, false
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			switch name, v, _ := bytes.Cut(line, []byte(":")); string(name) {
			case "Content-Length":
				size, _ = strconv.Atoi(strings.TrimSpace(string(v)))
			case "Accept":
				msgpack = bytes.Contains(v, []byte("msgpack"))
			default:
				if path == "" {
					path = string(bytes.Fields(line)[1])
				}
			}
		}
		if cap(body) < size {
			body = make([]byte, size)
		}
		body = body[:size]
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		q.requests.Add(1)
		if _, err := conn.Write(q.answer(path[strings.LastIndexByte(path, '/')+1:], body, msgpack)); err != nil {
			return
		}
	}
}

// entries counts the entries of a request's only list.
func entries(body []byte, msgpack bool) int {
	if !msgpack {
		return max(bytes.Count(body, []byte(`"payload`)), bytes.Count(body, []byte(`"01`)))
	}
	b := body[2+int(body[1]&0x1f):] // a map of one; its key
	switch {
	case b[0]>>4 == 9:
		return int(b[0] & 0xf)
	case b[0] == 0xdc:
		return int(binary.BigEndian.Uint16(b[1:]))
	}
	return int(binary.BigEndian.Uint32(b[1:]))
}

func (q *quick) answer(verb string, body []byte, msgpack bool) []byte {
	n := 0
	if verb == "lease" {
		var in wire.LeaseRequest
		decode := wire.Unmarshal
		if msgpack {
			decode = wire.DecodeMsgpack
		}
		if err := decode(body, &in); err != nil {
			panic(err)
		}
		n = int(*in.MaxMessages)
	} else {
		n = entries(body, msgpack)
	}
	key := fmt.Sprint(verb, n, msgpack)
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.answers[key]
	if b == nil {
		b = q.make(verb, n, msgpack)
		q.answers[key] = b
	}
	return b
}

const benchID = "01JD5Z3V8Q0000000000000001"

func (q *quick) make(verb string, n int, msgpack bool) []byte {
	var v any
	switch verb {
	case "messages":
		out := &wire.ProduceResponse{}
		for range n {
			out.Messages = append(out.Messages, wire.Produced{ID: benchID, Status: wire.Enqueued})
		}
		v = out
	case "lease":
		out := &wire.LeaseResponse{}
		for range n {
			out.Messages = append(out.Messages, wire.LeasedMessage{ID: benchID, LeaseID: benchID, Queue: "q", Attempt: 1, MaxAttempts: 5, Priority: 5,
				Headers: map[string]string{}, Payload: q.payload, EnqueuedAt: 1e12, LeaseExpiresAt: 1e12})
		}
		v = out
	default:
		out := &wire.SettleResponse{}
		for range n {
			out.Results = append(out.Results, wire.SettleResult{LeaseID: benchID, Status: "acked"})
		}
		v = out
	}
	b, err := wire.Marshal(v)
	media := "json"
	if msgpack {
		b, err = wire.AppendMsgpack(nil, v)
		media = "msgpack"
	}
	if err != nil {
		panic(err)
	}
	return append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/%s\r\nContent-Length: %d\r\n\r\n", media, len(b)), b...)
}

// spent reports the CPU that a message took, the server's part included.
func spent(b *testing.B, q *quick) func() {
	b.Helper()
	b.ReportAllocs()
	cpu := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
	}
	before, requests := cpu(), q.requests.Load()
	b.ResetTimer()
	return func() {
		b.StopTimer()
		b.ReportMetric((cpu()-before)/float64(b.N), "cpu-us/msg")
		b.ReportMetric(float64(b.N)/float64(max(q.requests.Load()-requests, 1)), "msg/request")
	}
}

// random is a payload of 1 KiB that is JSON.
func random() []byte {
	var b [511]byte
	_, _ = rand.Read(b[:])
	return strconv.AppendQuote(nil, hex.EncodeToString(b[:]))
}

func benchClient(b *testing.B, q *quick) *Client {
	b.Helper()
	c, err := New(q.url())
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// each lets goroutines do something for b.N messages.
func each(b *testing.B, goroutines int, do func(ctx context.Context) error) {
	b.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for n.Add(1) <= int64(b.N) {
				if err := do(b.Context()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkProduce100(b *testing.B) {
	q := newQuick(b, nil)
	c := benchClient(b, q)
	batch := make([]wire.NewMessage, 100)
	for i := range batch {
		batch[i].Payload = random()
	}
	defer spent(b, q)()
	for n := 0; n < b.N; n += len(batch) {
		if _, err := c.Produce(b.Context(), "q", batch...); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProduceSingle64(b *testing.B) {
	q := newQuick(b, nil)
	c := benchClient(b, q)
	payload := random()
	defer spent(b, q)()
	each(b, 64, func(ctx context.Context) error {
		_, err := c.Produce(ctx, "q", wire.NewMessage{Payload: payload})
		return err
	})
}

func BenchmarkLeaseAck100(b *testing.B) {
	q := newQuick(b, random())
	c := benchClient(b, q)
	ids := make([]string, 100)
	defer spent(b, q)()
	for n := 0; n < b.N; n += len(ids) {
		got, err := c.Lease(b.Context(), "q", LeaseOptions{Max: len(ids)})
		if err != nil {
			b.Fatal(err)
		}
		for i := range got {
			ids[i] = got[i].LeaseID
		}
		if _, err := c.Ack(b.Context(), "q", ids...); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnqueue64(b *testing.B) { benchEnqueue(b, 64) }
func BenchmarkEnqueue1(b *testing.B)  { benchEnqueue(b, 1) }

func BenchmarkProduceSingle1(b *testing.B) {
	q := newQuick(b, nil)
	c := benchClient(b, q)
	m := wire.NewMessage{Payload: random()}
	defer spent(b, q)()
	each(b, 1, func(ctx context.Context) error {
		_, err := c.Produce(ctx, "q", m)
		return err
	})
}

func benchEnqueue(b *testing.B, goroutines int) {
	b.Helper()
	q := newQuick(b, nil)
	c := benchClient(b, q)
	defer c.Close()
	m := wire.NewMessage{Payload: random()}
	defer spent(b, q)()
	each(b, goroutines, func(ctx context.Context) error {
		_, err := c.Enqueue(ctx, "q", m)
		return err
	})
}

func BenchmarkSettle64(b *testing.B) {
	q := newQuick(b, nil)
	c := benchClient(b, q)
	defer c.Close()
	defer spent(b, q)()
	each(b, 64, func(ctx context.Context) error {
		_, err := c.Settle(ctx, "q", Settlement{LeaseID: benchID, Do: DoAck})
		return err
	})
}

// One worker, with handlers that do nothing.
func BenchmarkWorker64(b *testing.B) {
	q := newQuick(b, random())
	c := benchClient(b, q)
	defer c.Close()
	defer spent(b, q)()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var n atomic.Int64
	w := NewWorker(c, "q", func(context.Context, *Message) error {
		if n.Add(1) == int64(b.N) {
			cancel()
		}
		return nil
	}, WorkerOptions{Concurrency: 64})
	if err := w.Run(ctx); err != nil {
		b.Fatal(err)
	}
}
