package raft

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/peer"
)

// network carries hashicorp/raft's requests between replicas, in place of the
// library's NetworkTransport and compatible with it (see network_codec.go). On a
// connection one request follows the answer to the one before. Who connects
// asks, who accepts answers, on one goroutine for each connection: that goroutine
// reads the request, hands it to whoever answers, and writes the answer, so that
// a request wakes nobody but who has to see it.
type network struct {
	stream  hraft.StreamLayer
	timeout time.Duration // of a request and its answer; see install
	limit   int64         // of a request, in bytes
	// take is given a request on the goroutine of its connection. Either it lets
	// rpc.Respond be called once, by whom it likes and also after it has returned,
	// or it returns an error, which is then the answer.
	take func(rpc *hraft.RPC, heartbeat bool) error
	// settled is called before the answer to a request is sent; an error is sent
	// in its place.
	settled func(command, response any) error
	refused func(from string, err error) // is told of each connection that is closed for what came over it

	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	lanes  map[server]*lane
}

// server is whom a request is for.
type server struct {
	id   hraft.ServerID
	addr hraft.ServerAddress
}

// lane is the idle connections to a server.
type lane struct {
	// entries is the one that replication uses, where it has it back: always the
	// same, with what it has learned of the line, however many others there are.
	entries *dialledConn
	others  []*dialledConn // the one used last at the end
}

// maxIdle bounds a lane's others.
const maxIdle = 3

// dialledConn is a connection on which this node asks. One goroutine at a time
// has it.
type dialledConn struct {
	net.Conn
	decoder
}

// timeoutScale is how many bytes of a snapshot have network.timeout to
// themselves, as in hashicorp/raft's network.
const timeoutScale = 256 << 10

// acceptedBuffer is how much is read at once of what others ask: some small
// entries, or the head of a large one, whose bytes are then read to where they
// stay.
const acceptedBuffer = 32 << 10

// newNetwork accepts connections until close.
func newNetwork(stream hraft.StreamLayer, take func(*hraft.RPC, bool) error, settled func(command, response any) error, refused func(string, error)) *network {
	n := &network{
		stream: stream, timeout: rpcTimeout, limit: maxRequest, take: take, settled: settled, refused: refused,
		stop: make(chan struct{}), lanes: map[server]*lane{},
	}
	n.wg.Go(n.accept)
	return n
}

func (n *network) accept() {
	for wait := time.Duration(0); ; {
		c, err := n.stream.Accept()
		if err == nil {
			wait = 0
			n.wg.Go(func() { n.answerOn(c) })
			continue
		}
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		select {
		case <-n.stop:
			return
		case <-time.After(wait):
		}
	}
}

// close closes all connections, in both directions, and returns when nobody
// serves any more. Who waits for an answer is told an error.
func (n *network) close() error {
	var err error
	n.once.Do(func() {
		close(n.stop)
		err = n.stream.Close()
		n.mu.Lock()
		n.closed = true
		idle := n.lanes
		n.lanes = nil
		n.mu.Unlock()
		for _, l := range idle {
			l.close()
		}
	})
	n.wg.Wait()
	return err
}

func (l *lane) close() {
	if l.entries != nil {
		l.entries.Close()
	}
	for _, c := range l.others {
		c.Close()
	}
}

// get returns an idle connection to a server, or a new one.
func (n *network) get(to server, entries bool) (*dialledConn, error) {
	if c := n.idle(to, entries); c != nil {
		return c, nil
	}
	c, err := n.stream.Dial(dialled(to.id, to.addr), n.timeout)
	if err != nil {
		return nil, err
	}
	return &dialledConn{c, decoder{r: bufio.NewReader(c)}}, nil
}

func (n *network) idle(to server, entries bool) *dialledConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.lanes[to]
	if l == nil {
		return nil
	}
	if c := l.entries; c != nil && entries {
		l.entries = nil
		return c
	}
	if k := len(l.others) - 1; k >= 0 {
		c := l.others[k]
		l.others[k], l.others = nil, l.others[:k]
		return c
	}
	return nil
}

// put is the inverse of get.
func (n *network) put(to server, entries bool, c *dialledConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		c.Close()
		return
	}
	l := n.lanes[to]
	if l == nil {
		l = &lane{}
		n.lanes[to] = l
	}
	switch {
	case entries && l.entries == nil:
		l.entries = c
	case len(l.others) < maxIdle:
		l.others = append(l.others, c)
	default:
		c.Close()
	}
}

// broke closes a connection that failed, and the idle ones to the same server:
// as a rule they have all ended, with its process or its line.
func (n *network) broke(to server, c *dialledConn) {
	c.Close()
	n.mu.Lock()
	l := n.lanes[to]
	delete(n.lanes, to)
	n.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// ask sends a request and reads the answer to it. The error is what the other
// side answered, or why nothing is known of it.
func (n *network) ask(to server, args, response any) error {
	a, entries := args.(*hraft.AppendEntriesRequest)
	entries = entries && !isHeartbeat(a)
	c, err := n.get(to, entries)
	if err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(n.timeout))
	var refused error
	if err = send(c, func(e *encoder) { e.request(args) }); err == nil {
		refused, err = c.answer(response)
	}
	if err != nil {
		n.broke(to, c)
		return err
	}
	n.put(to, entries, c)
	return refused
}

// install sends a snapshot, for which there is more time, by its size. The
// connection is closed: where something has failed it is not known what of the
// snapshot is still on its way.
func (n *network) install(to server, args *hraft.InstallSnapshotRequest, response *hraft.InstallSnapshotResponse, data io.Reader) error {
	c, err := n.get(to, false)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(n.timeout * time.Duration(max(args.Size/timeoutScale, 1))))
	if err := send(c, func(e *encoder) { e.request(args) }); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(c.Conn, data, make([]byte, gathered)); err != nil {
		return err
	}
	refused, err := c.answer(response)
	if err != nil {
		return err
	}
	return refused
}

// answerOn answers what comes over a connection until it ends.
func (n *network) answerOn(c net.Conn) {
	defer c.Close()
	from := c.RemoteAddr().String()
	if p, ok := c.(interface{ Peer() peer.Identity }); ok {
		from = p.Peer().Node
	}
	d := &decoder{r: bufio.NewReaderSize(c, acceptedBuffer)}
	for {
		if err := n.answerOne(c, d); err != nil {
			if errors.Is(err, errMalformed) {
				n.refused(from, err)
			}
			return
		}
	}
}

func (n *network) answerOne(c net.Conn, d *decoder) error {
	command, err := d.request(n.limit)
	if err != nil {
		return err
	}
	// A channel for each: whoever responds twice would else answer the next.
	answers := make(chan hraft.RPCResponse, 1)
	rpc := hraft.RPC{Command: command, RespChan: answers}
	var data *io.LimitedReader
	heartbeat := false
	switch m := command.(type) {
	case *hraft.AppendEntriesRequest:
		heartbeat = isHeartbeat(m)
	case *hraft.InstallSnapshotRequest:
		data = &io.LimitedReader{R: d.r, N: m.Size}
		rpc.Reader = data
	}
	var answer hraft.RPCResponse
	if err := n.take(&rpc, heartbeat); err != nil {
		answer.Error = err
	} else {
		select {
		case answer = <-answers:
			if err := n.settled(command, answer.Response); err != nil {
				answer = hraft.RPCResponse{Error: err}
			}
		case <-n.stop:
			return hraft.ErrTransportShutdown
		}
	}
	if data != nil && data.N > 0 {
		// What nobody has read would be taken for the next request.
		if _, err := io.Copy(io.Discard, data); err != nil {
			return err
		}
		if data.N > 0 {
			return io.ErrUnexpectedEOF
		}
	}
	return send(c, func(e *encoder) { e.answer(answer.Response, answer.Error) })
}

// isHeartbeat tells whether a request says only who leads: it does not have to
// wait behind what writes to a disk.
func isHeartbeat(a *hraft.AppendEntriesRequest) bool {
	//lint:ignore SA1019 older programs set no Addr
	return a.Term != 0 && (len(a.Addr) > 0 || a.Leader != nil) &&
		a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0
}
