package api

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/log"
)

// fakeProof is a log of one segment.
type fakeProof struct{ *fake }

func (p fakeProof) HeadAt(index uint64) (wire.LogHead, error) {
	if index <= p.log.deleted && index > 0 {
		return wire.LogHead{}, log.ErrGone
	}
	return wire.LogHead{ClusterID: "c", NodeID: "n1", Index: index, ChainHash: strings.Repeat("0", 64), Time: 1_700_000_000_000}, nil
}

func (p fakeProof) LogSegments() wire.LogSegments {
	return wire.LogSegments{ClusterID: "c", NodeID: "n1", Segments: []wire.LogSegment{{Name: "1.seg", FirstIndex: 1, LastIndex: 2, Bytes: 3, LastTime: 1, Sealed: true}}}
}

func TestLogHeadAndSegments(t *testing.T) {
	h := setup(t)
	h.do("GET", "/v1/log/head", "").want(404)
	h.s.deps.Proof = fakeProof{h.fake}
	h.do("PUT", "/v1/queues/q", "{}").want(201)
	h.produceN("q", 2)
	if got := h.do("GET", "/v1/log/head", "").want(200).get("index"); got != float64(3) || h.log.Head() != 3 {
		t.Errorf("index %v, the log's head is %d", got, h.log.Head())
	}
	if got := h.do("GET", "/v1/log/head?at=start", "").want(200).get("index"); got != float64(0) {
		t.Errorf("at the start: %v", got)
	}
	for _, wrong := range []string{"head?at=index:99999", "head?at=yesterday", "head?index=1", "segments?at=now"} {
		if code := h.do("GET", "/v1/log/"+wrong, "").want(400).str("code"); code != "invalid_argument" {
			t.Errorf("%s: %s", wrong, code)
		}
	}
	h.log.deleted = 2
	if code := h.do("GET", "/v1/log/head?at=index:1", "").want(410).str("code"); code != "history_expired" {
		t.Errorf("deleted: %s", code)
	}
	if got := h.do("GET", "/v1/log/segments?consistency=stale", "").want(200).get("segments.0.sealed"); got != true {
		t.Errorf("%v", got)
	}
}
