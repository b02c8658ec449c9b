package api

import (
	"strings"

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
