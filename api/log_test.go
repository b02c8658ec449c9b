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
	return wire.LogHead{ClusterID: "c", NodeID: "n1", Index: index,
		ChainHash: strings.Repeat("0", 64), Time: 1_700_000_000_000}, nil
}

func (p fakeProof) LogSegments() wire.LogSegments {
	return wire.LogSegments{ClusterID: "c", NodeID: "n1",
		Segments: []wire.LogSegment{{Name: "1.seg", FirstIndex: 1, LastIndex: 2, Bytes: 3,
			LastTime: 1, Sealed: true}}}
}

func TestLogHeadAndSegments(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "{}").want(201)
	h.produceN("q", 2)
	h.do("GET", "/v1/log/head", "").want(200).with("index", float64(h.log.Head()))
	h.do("GET", "/v1/log/head?at=start", "").want(200).with("index", 0.0)
	for _, wrong := range []string{
		"head?at=index:99999", "head?at=yesterday", "head?index=1", "segments?at=now",
	} {
		h.do("GET", "/v1/log/"+wrong, "").want(400).with("code", "invalid_argument")
	}
	h.log.deleted = 2
	h.do("GET", "/v1/log/head?at=index:1", "").want(410).with("code", "history_expired")
	h.do("GET", "/v1/log/segments?consistency=stale", "").want(200).with("segments.0.sealed", true)
}
