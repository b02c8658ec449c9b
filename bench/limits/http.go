package limits

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"syscall"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// HTTP is a net/http server that decodes a batch into structs, with encoding/json
// or with vmihailenco/msgpack, and answers with as many ids as qlogd would. Its
// clients are net/http's, with a connection each and bodies encoded by hand.
func HTTP(format string) system.System { return &httpSystem{format: format} }

type httpSystem struct {
	format string
	proc   *system.Process
	url    string
}

func (s *httpSystem) Name() string  { return "limit-http-" + s.format }
func (*httpSystem) Durable() string { return "nothing: the request was decoded" }
func (*httpSystem) Missing() string { return "" }
func (s *httpSystem) PIDs() []int   { return s.proc.PIDs() }

func (s *httpSystem) Start(ctx context.Context, dir string) error {
	addr, err := system.Addrs(1)
	if err != nil {
		return err
	}
	s.url = "http://" + addr[0] + "/v1/queues/q/messages"
	if s.proc, err = start(dir, s.Name(), "http", addr[0], s.format); err != nil {
		return err
	}
	return s.proc.Ready(ctx, func(ctx context.Context) error {
		p := s.producer()
		defer p.Close()
		return p.Produce(ctx, []load.Message{{Payload: []byte("ready?")}})
	})
}

func (s *httpSystem) Fresh(context.Context) (load.Target, error) { return httpTarget{s: s}, nil }

func (s *httpSystem) Stop() error {
	if s.proc == nil {
		return nil
	}
	err := s.proc.Stop(syscall.SIGTERM)
	s.proc = nil
	return err
}

// request is the body of a produce call; in msgpack the payload is bytes.
type request struct {
	Messages []struct {
		Payload []byte `json:"payload_base64" msgpack:"payload"`
	} `json:"messages" msgpack:"messages"`
}

type response struct {
	Messages []accepted `json:"messages" msgpack:"messages"`
}

type accepted struct {
	ID     string `json:"id" msgpack:"id"`
	Status string `json:"status" msgpack:"status"`
}

func httpChild(args []string) error {
	// One buffer of the right size and Unmarshal is a fifth cheaper than a Decoder.
	decode := func(r *http.Request, v any) error {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return err
		}
		return json.Unmarshal(body, v)
	}
	encode := func(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
	if args[1] == "msgpack" {
		decode = func(r *http.Request, v any) error { return msgpack.NewDecoder(r.Body).Decode(v) }
		encode = func(w io.Writer, v any) error { return msgpack.NewEncoder(w).Encode(v) }
	}
	handle := func(w http.ResponseWriter, r *http.Request) {
		var in request
		if err := decode(r, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out := response{Messages: make([]accepted, len(in.Messages))}
		for i := range out.Messages {
			out.Messages[i] = accepted{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "enqueued"}
		}
		w.WriteHeader(http.StatusCreated)
		_ = encode(w, &out)
	}
	return http.ListenAndServe(args[0], http.HandlerFunc(handle))
}

type httpTarget struct {
	none
	s *httpSystem
}

func (t httpTarget) Producer(context.Context) (load.Producer, error) { return t.s.producer(), nil }

func (s *httpSystem) producer() *httpProducer {
	c := &http.Client{Transport: &http.Transport{}}
	return &httpProducer{url: s.url, msgpack: s.format == "msgpack", c: c}
}

type httpProducer struct {
	url     string
	msgpack bool
	c       *http.Client
	body    []byte
}

func (p *httpProducer) Produce(ctx context.Context, batch []load.Message) error {
	kind := "application/json"
	if p.msgpack {
		kind = "application/msgpack"
		p.body = appendMsgpack(p.body[:0], batch)
	} else {
		p.body = appendJSON(p.body[:0], batch)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(p.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := p.c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

func appendJSON(dst []byte, batch []load.Message) []byte {
	dst = append(dst, `{"messages":[`...)
	for i, m := range batch {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"payload_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, m.Payload)
		dst = append(dst, `"}`...)
	}
	return append(dst, `]}`...)
}

// appendMsgpack writes a map of one, "messages", an array of maps of one, "payload", bin 16.
func appendMsgpack(dst []byte, batch []load.Message) []byte {
	dst = append(append(dst, 0x81, 0xa8), "messages"...)
	dst = append(dst, 0xdc, byte(len(batch)>>8), byte(len(batch)))
	for _, m := range batch {
		dst = append(append(dst, 0x81, 0xa7), "payload"...)
		dst = append(dst, 0xc5, byte(len(m.Payload)>>8), byte(len(m.Payload)))
		dst = append(dst, m.Payload...)
	}
	return dst
}

func (p *httpProducer) Close() error {
	p.c.CloseIdleConnections()
	return nil
}
