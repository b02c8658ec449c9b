package fsm

// A test may import what it likes.
import _ "github.com/qlogd/qlogd/raft"
