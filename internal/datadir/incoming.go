package datadir

// IncomingDir holds what internal/fetch brings from another node until it is
// put in place at the next opening.
const IncomingDir = "incoming"
