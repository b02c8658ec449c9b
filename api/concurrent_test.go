package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/transcode"
)

// hangsUp is a body whose client hangs up behind it.
type hangsUp struct {
	io.Reader
	hangUp func()
}

func (r *hangsUp) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err == io.EOF {
		r.hangUp()
		err = errors.New("hung up")
	}
	return n, err
}

// TestConcurrentBodies: bodies and answers are in buffers that requests share. What is stored and
// leased is what the client sent that it names, although others hang up in the middle.
func TestConcurrentBodies(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = HTTPServer(h.s.Handler(), Guard{}, h.s.opts.Conns, h.s.log)
	srv.Start()
	defer srv.Close()
	// text is the payload of the message with a correlation id: its length differs, too.
	text := func(id string) string { return strings.Repeat(id+" ", 10+len(id)*int(id[len(id)-1])) }
	var mu sync.Mutex
	sent := map[string]bool{} // whether the client sent all of it
	client := func(worker int) {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(worker%2 == 0)
		protocols.SetUnencryptedHTTP2(worker%2 == 1)
		tr := &http.Transport{Protocols: protocols, HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: 64 << 10, // so that answers are not all under way at once
		}}
		defer tr.CloseIdleConnections()
		ask := func(call, media string, body []byte, abort bool) (*http.Response, error) {
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			r := io.Reader(bytes.NewReader(body))
			if abort {
				r = &hangsUp{bytes.NewReader(body[:len(body)/2]), cancel}
			}
			q, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/queues/q/"+call, r)
			assert.NoError(t, err)
			q.Header = http.Header{"Content-Type": {media}, "Accept": {media + "; payload=bin"}}
			return tr.RoundTrip(q)
		}
		for i := range 20 {
			var in wire.ProduceRequest
			for j := range 5 {
				id := fmt.Sprintf("%d-%d-%d", worker, i, j)
				m := wire.NewMessage{CorrelationID: id, Headers: map[string]string{"h": id}}
				if j%2 == 1 {
					m.PayloadBytes = wire.Bytes(text(id))
				} else {
					m.Payload = jsontext.Value(`"` + text(id) + `"`)
				}
				in.Messages = append(in.Messages, m)
			}
			media := typeJSON
			body, err := wire.Marshal(&in)
			if i/2%2 == 1 {
				media = typeMsgpack
				body, err = transcode.Append(nil, &in, true)
			}
			assert.NoError(t, err)
			abort := i%4 == 3
			a, err := ask("messages", media, body, abort)
			if (err == nil) == abort || err == nil && a.StatusCode != http.StatusCreated {
				t.Errorf("%v, %v", a, err)
			}
			mu.Lock()
			for _, m := range in.Messages {
				sent[m.CorrelationID] = !abort
			}
			mu.Unlock()
			if err == nil {
				_ = a.Body.Close()
			}
			if a, err = ask("lease", media, nil, false); err != nil {
				t.Error(err)
				return
			}
			if i%3 == 2 { // hangs up in the middle of the answer
				_, _ = io.CopyN(io.Discard, a.Body, 1000)
				_ = a.Body.Close()
				continue
			}
			b, err := io.ReadAll(a.Body)
			_ = a.Body.Close()
			var out wire.LeaseResponse
			switch {
			case err != nil:
			case media == typeJSON:
				err = wire.Unmarshal(b, &out)
			default:
				err = transcode.Decode(b, &out, 1<<20)
			}
			assert.NoError(t, err)
			for _, m := range out.Messages {
				id := m.CorrelationID
				got := strings.Trim(string(m.Payload), `"`) + string(m.PayloadBytes)
				assert.True(t, got == text(id) && m.Headers["h"] == id,
					"%s was leased as %.60s", id, got)
			}
		}
	}
	var clients sync.WaitGroup
	for worker := range 8 {
		clients.Go(func() { client(worker) })
	}
	clients.Wait()
	srv.Close() // all requests have ended
	stored := map[string]bool{}
	for e, err := range h.log.Events(t.Context(), 1, math.MaxUint64) {
		require.NoError(t, err)
		if e.Type != event.Enqueued {
			continue
		}
		c, err := h.log.Content(event.RefOf(e.ID))
		require.NoError(t, err)
		id, want := c.CorrelationID, text(c.CorrelationID)
		if !c.Binary {
			want = `"` + want + `"`
		}
		if stored[id] || !sent[id] || string(c.Payload) != want || c.Headers[0].Value != id {
			t.Errorf("%s, sent: %v, is stored as %.60s", id, sent[id], c.Payload)
		}
		stored[id] = true
	}
	for id, whole := range sent {
		assert.False(t, whole && !stored[id], "%s is not stored", id)
	}
}
