package forming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/qlogd/qlogd/raft/peer"
)

// answer is what one address of the list said.
type answer struct {
	addr string
	who  peer.Identity
	state
	err error
}

// ask puts the question to all addresses at once.
func (s *seat) ask(ctx context.Context, addrs []string) []answer {
	out := make([]answer, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { out[i] = s.askOne(ctx, addr) })
	}
	wg.Wait()
	return out
}

func (s *seat) askOne(ctx context.Context, addr string) answer {
	a := answer{addr: addr}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	body, who, err := s.o.Net.Call(ctx, peer.Target{Addr: addr}, callState, nil)
	if err == nil {
		err = json.Unmarshal(body, &a.state)
	}
	if err == nil && (who.Node == "" || who.Incarnation == "" && a.Cluster == "") {
		err = errors.New("does not say who it is")
	}
	a.who, a.err = who, err
	return a
}

// reason says in a few words what is the matter with an address.
func reason(err error) string {
	var said *peer.Error
	if errors.As(err, &said) {
		switch said.Code {
		case "unknown_call":
			return "is starting"
		case "no_pledge":
			return "does not pledge itself: " + said.Detail
		}
		return "refuses: " + said.Detail
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "does not answer"
	}
	// Where and how is known; what remains is why: "connection refused".
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return fmt.Sprintf("does not answer (%v)", err)
}
