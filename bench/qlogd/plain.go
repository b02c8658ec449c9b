package qlogd

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/qlogd/qlogd/bench/load"
)

// Plain returns a queue as plain HTTP clients see it: each has a connection of its
// own and sends one message a request, its bytes as they are, as curl would do, and
// a batch as JSON. It speaks just as much HTTP/1.1 as that takes, so that what is
// measured is the server.
func Plain(urls []string, queue string) load.Target {
	t := &plain{queue: queue}
	for _, u := range urls {
		t.hosts = append(t.hosts, strings.TrimPrefix(u, "http://"))
	}
	return t
}

type plain struct {
	hosts []string
	queue string
	next  atomic.Uint32
}

func (t *plain) Producer(ctx context.Context) (load.Producer, error) {
	host := t.hosts[int(t.next.Add(1)-1)%len(t.hosts)]
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	p := &plainProducer{conn: conn, r: bufio.NewReaderSize(conn, 4<<10)}
	p.head = "POST /v1/queues/" + t.queue + "/messages HTTP/1.1\r\nHost: " + host +
		"\r\nUser-Agent: plain\r\nAccept: */*\r\nContent-Type: "
	return p, nil
}

func (t *plain) Worker(context.Context) (load.Worker, error) {
	return nil, errors.New("plain clients only produce")
}

type plainProducer struct {
	conn net.Conn
	r    *bufio.Reader
	head string
	buf  []byte // of a request's head
	body []byte
	vec  [2][]byte
	bufs net.Buffers
}

func (p *plainProducer) Produce(_ context.Context, batch []load.Message) error {
	body, kind := batch[0].Payload, "application/octet-stream"
	if len(batch) > 1 {
		kind = "application/json"
		body = append(p.body[:0], `{"messages":[`...)
		for i, m := range batch {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, `{"payload_base64":"`...)
			body = base64.StdEncoding.AppendEncode(body, m.Payload)
			body = append(body, `"}`...)
		}
		body = append(body, "]}"...)
		p.body = body
	}
	p.buf = append(append(p.buf[:0], p.head...), kind...)
	p.buf = append(p.buf, "\r\nContent-Length: "...)
	p.buf = append(strconv.AppendInt(p.buf, int64(len(body)), 10), "\r\n\r\n"...)
	p.bufs = append(p.vec[:0], p.buf, body)
	if _, err := p.bufs.WriteTo(p.conn); err != nil {
		return err
	}
	return answer(p.r, "201")
}

// answer reads an answer, which must have this status.
func answer(r *bufio.Reader, want string) error {
	status, length := "", -1
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if status == "" {
			status = strings.TrimSpace(string(line))
			continue
		}
		name, value, _ := strings.Cut(string(line), ":")
		if strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("%s, without a Content-Length", status)
	}
	if !strings.HasPrefix(status, "HTTP/1.1 "+want+" ") {
		b, _ := io.ReadAll(io.LimitReader(r, int64(min(length, 300))))
		return fmt.Errorf("%s: %s", status, b)
	}
	_, err := r.Discard(length)
	return err
}

func (p *plainProducer) Close() error { return p.conn.Close() }
