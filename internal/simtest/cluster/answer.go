package cluster

import (
	"context"
	"net/http"
	"strconv"
)

// Answer is what an HTTP answer says beside its body.
type Answer struct {
	Node   *Node  // who answered, or was asked last
	Starts int    // which of its processes
	Index  uint64 // X-Qlogd-Index; 0: none
	Status int    // 0: there was no answer
	Header http.Header
}

type answerKey struct{}

// WithAnswer has a call's answer written down in a.
func WithAnswer(ctx context.Context, a *Answer) context.Context {
	return context.WithValue(ctx, answerKey{}, a)
}

// recorder is a node's transport that records each answer for a caller that asks
// for it (WithAnswer).
type recorder struct{ n *Node }

func (t recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	a, _ := req.Context().Value(answerKey{}).(*Answer)
	if a != nil {
		*a = Answer{Node: t.n, Starts: t.n.Starts()}
	}
	resp, err := t.n.transport.RoundTrip(req)
	if a != nil && err == nil {
		a.Status, a.Header = resp.StatusCode, resp.Header
		a.Index, _ = strconv.ParseUint(resp.Header.Get("X-Qlogd-Index"), 10, 64)
	}
	return resp, err
}

func (t recorder) CloseIdleConnections() { t.n.transport.CloseIdleConnections() }
