package datadir

// IncomingDir holds what raft/fetch brings from another node until it is
// put in place at the next opening.
const IncomingDir = "incoming"
