package raft

// MemberStatus is a member as this node sees it.
type MemberStatus struct {
	Member
	Votes        bool // is a voter of the configuration; else it may be on its way
	Leader       bool
	Reachable    bool // has answered lately
	AppliedIndex uint64
	LogHead      uint64 // index of the event log's newest block
	Chain        [32]byte
}

// Out is why a data directory is no member of its cluster any more.
type Out int

const (
	// Removed: the configuration no longer has this node.
	Removed Out = iota + 1
	// WentBack: others have seen more from this directory than it holds. It was
	// put back from an old copy, or has lost what it had promised, and must come
	// back as another server.
	WentBack
)

func (o Out) String() string {
	switch o {
	case Removed:
		return "removed"
	case WentBack:
		return "went back"
	}
	return "member"
}
