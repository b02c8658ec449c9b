package server

import (
	"fmt"
	"syscall"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/log"
)

// File descriptors that are not available to connections: a node that cannot open a file of its log
// exits.
const (
	// Standard streams, the poller, listeners, the lock on the directory, the service manager's
	// socket; and what is read in a moment: certificates, secrets, the resolver's files.
	processFiles = 32
	// The event log's files that are kept open, and the active segment with its index. As many
	// again while the archive, or segments that were fetched, are read as a log of their own.
	logFiles = 2 * (log.MaxOpen + 8)
	// Segments of the Raft log, 32 MiB each. A checkpoint is due after 256 MiB, or the size of the
	// last one; the log behind it is kept while another node fetches it.
	raftFiles = 64
	// Raft's store and the read models, checkpoints that are written, sent or read for a look into
	// the past, files that are copied to the archive.
	otherFiles = 48
	// Connections that are closed to make room and still open, and one that each listener accepts.
	closingConns = api.ClosingConns + 8

	reservedFiles = processFiles + logFiles + raftFiles + otherFiles + closingConns
	leastConns    = 256 // with fewer for all connections a node is of no use
)

// connLimits is how many connections a node has at most.
type connLimits struct {
	clients int // of all listeners for clients
	peers   int // from and to other nodes
	egress  int // to push targets and targets of webhooks
}

// limitConns returns what the limit on open files leaves for connections. Go has raised it to the
// hard limit at the start.
func limitConns() (l connLimits, err error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return l, fmt.Errorf("limit on open files: %w", err)
	}
	files := uint64(r.Cur)
	if files < reservedFiles+leastConns {
		return l, settingsf("this process may open %d files, and needs at least %d: raise the limit "+
			"(ulimit -n, LimitNOFILE of systemd, ulimits of a container)",
			files, reservedFiles+leastConns)
	}
	left := int(min(files, 1<<20)) - reservedFiles
	l.peers = min(left/4, 1024)
	l.egress = left / 8 // half of a quarter: a name with two addresses is dialed at both
	l.clients = min(left-l.peers-2*l.egress, api.MaxConns)
	return l, nil
}
