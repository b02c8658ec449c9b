package peers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// NATSOption changes how NATS is loaded.
type NATSOption int

// Atomic publishes a batch of more than one as an atomic batch (ADR-50), which a
// server that syncs always syncs once. Without it a batch is many
// PublishAsync, which is how the client publishes many messages.
const Atomic NATSOption = 1

// NATS is JetStream with one server or three, with the newest nats-server, which
// is built from its module by the go command. always is sync_interval: always;
// without it the server syncs every two minutes and what it acknowledges is in
// the page cache of a majority.
//
// Given to it: file storage, a work queue stream with as many replicas as there
// are servers, subject and stream one for one; a durable pull consumer with
// explicit acks and no bound on those pending. Batches are PublishAsync of all
// and then waiting for all, as docs.nats.io says under "JetStream › Publishing":
// "use asynchronous publishing for throughput"; workers Consume, which keeps
// pull requests outstanding. An ack is a double ack (the server confirms it), of
// a batch all at once and then waited for. Clients connect to the stream's
// leader, which spares a hop, and share one connection for all producers and one
// for all workers, as the client's documentation recommends: writes of many
// goroutines then share system calls.
func NATS(servers int, always bool, opts ...NATSOption) system.System {
	s := &natsSystem{servers: servers, always: always}
	for _, o := range opts {
		s.atomic = s.atomic || o == Atomic
	}
	return s
}

type natsSystem struct {
	servers        int
	always, atomic bool

	procs system.Processes
	urls  map[string]string // by the server's name
	admin *nats.Conn
	js    jetstream.JetStream
	last  *natsTarget
	queues
}

func (s *natsSystem) Name() string {
	name := fmt.Sprint("nats-r", s.servers)
	if s.always {
		name += "-always"
	}
	if s.atomic {
		name += "-atomic"
	}
	return name
}

func (s *natsSystem) Durable() string {
	switch {
	case s.always && s.servers > 1:
		return "the message is in the Raft log of a majority, after fsync there; an ack is, too"
	case s.always:
		return "the message, and the mark that an ack removes it, is in the stream's file, " +
			"after fsync"
	case s.servers > 1:
		return "the message, and an ack, is in the page cache of a majority: fsync every 2 minutes"
	}
	return "the message, and an ack, is in the page cache: fsync every 2 minutes"
}

func (s *natsSystem) Missing() string {
	if _, err := natsBinary(); err != nil {
		return err.Error()
	}
	return ""
}

// natsBinary returns the path of nats-server in the version of go.mod, which the
// go command builds into its cache.
func natsBinary() (string, error) {
	out, err := exec.Command("go", "tool", "-n", "github.com/nats-io/nats-server/v2").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("nats-server is built by go tool within bench/: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (s *natsSystem) Start(ctx context.Context, dir string) error {
	bin, err := natsBinary()
	if err != nil {
		return err
	}
	ports, err := system.Ports(3 * s.servers)
	if err != nil {
		return err
	}
	s.urls = map[string]string{}
	var routes, monitors []string
	for i := range s.servers {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[3*i+2]))
	}
	for i := range s.servers {
		name := fmt.Sprint("n", i+1)
		s.urls[name] = fmt.Sprintf("nats://127.0.0.1:%d", ports[3*i])
		monitors = append(monitors, fmt.Sprintf("http://127.0.0.1:%d/healthz", ports[3*i+1]))
		var c strings.Builder
		fmt.Fprintf(&c, "server_name: %s\nlisten: 127.0.0.1:%d\nhttp: 127.0.0.1:%d\n",
			name, ports[3*i], ports[3*i+1])
		fmt.Fprintf(&c, "jetstream {\n store_dir: %q\n", filepath.Join(dir, name))
		if s.always {
			c.WriteString(" sync_interval: always\n")
		}
		c.WriteString("}\n")
		if s.servers > 1 {
			fmt.Fprintf(&c, "cluster {\n name: bench\n listen: 127.0.0.1:%d\n routes: [%s]\n}\n",
				ports[3*i+2], strings.Join(routes, ", "))
		}
		file := filepath.Join(dir, name+".conf")
		if err := os.WriteFile(file, []byte(c.String()), 0o644); err != nil {
			return err
		}
		p, err := system.Run(dir, name, exec.Command(bin, "-c", file))
		if err != nil {
			return err
		}
		s.procs = append(s.procs, p)
	}
	for i, p := range s.procs {
		err := p.Ready(ctx, func(ctx context.Context) error { return healthy(ctx, monitors[i]) })
		if err != nil {
			return err
		}
	}
	if s.admin, err = nats.Connect(s.urls["n1"]); err != nil {
		return err
	}
	if s.js, err = jetstream.New(s.admin); err != nil {
		return err
	}
	// A cluster is ready when it places a stream on all of its members.
	return s.procs[0].Ready(ctx, func(ctx context.Context) error {
		_, err := s.Fresh(ctx)
		return err
	})
}

func healthy(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(url + " answers " + resp.Status)
	}
	return nil
}

func (s *natsSystem) PIDs() []int { return s.procs.PIDs() }

func (s *natsSystem) Stop() error {
	s.last.close()
	if s.admin != nil {
		s.admin.Close()
	}
	err := s.procs.Stop(syscall.SIGTERM)
	*s = natsSystem{servers: s.servers, always: s.always, atomic: s.atomic}
	return err
}

func (s *natsSystem) Fresh(ctx context.Context) (load.Target, error) {
	if s.last != nil {
		name := s.last.name
		s.last.close()
		s.last = nil
		if err := s.js.DeleteStream(ctx, name); err != nil {
			return nil, err
		}
	}
	t := &natsTarget{name: s.next(), atomic: s.atomic}
	stream, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: t.name, Subjects: []string{t.name}, Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.FileStorage, Replicas: s.servers, AllowAtomicPublish: s.atomic,
	})
	if err != nil {
		return nil, err
	}
	t.stream = stream
	_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "w", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1,
	})
	if err != nil {
		return nil, err
	}
	leader := "n1"
	if s.servers > 1 {
		if leader, err = settled(ctx, stream); err != nil {
			return nil, err
		}
	}
	if t.produce, err = nats.Connect(s.urls[leader]); err != nil {
		return nil, err
	}
	s.last = t
	if t.work, err = nats.Connect(s.urls[leader]); err != nil {
		return nil, err
	}
	return t, nil
}

// settled waits until a stream has all of its replicas, and names its leader.
func settled(ctx context.Context, stream jetstream.Stream) (string, error) {
	for {
		info, err := stream.Info(ctx)
		if err != nil {
			return "", err
		}
		current := 0
		if info.Cluster != nil && info.Cluster.Leader != "" {
			for _, r := range info.Cluster.Replicas {
				if r.Current && !r.Offline {
					current++
				}
			}
			if current == info.Config.Replicas-1 {
				return info.Cluster.Leader, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

type natsTarget struct {
	name          string
	atomic        bool
	stream        jetstream.Stream
	produce, work *nats.Conn
}

func (t *natsTarget) close() {
	if t == nil {
		return
	}
	for _, c := range []*nats.Conn{t.produce, t.work} {
		if c != nil {
			c.Close()
		}
	}
}

func (t *natsTarget) Count(ctx context.Context) (int, error) {
	info, err := t.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.State.Msgs), nil
}

func (t *natsTarget) Producer(context.Context) (load.Producer, error) {
	js, err := jetstream.New(t.produce, jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		return nil, err
	}
	return &natsProducer{t: t, js: js}, nil
}

type natsProducer struct {
	t       *natsTarget
	js      jetstream.JetStream
	pending []jetstream.PubAckFuture
}

func (p *natsProducer) Produce(ctx context.Context, batch []load.Message) error {
	switch {
	case len(batch) == 1:
		_, err := p.js.Publish(ctx, p.t.name, batch[0].Payload)
		return err
	case p.t.atomic:
		return p.atomically(ctx, batch)
	}
	p.pending = p.pending[:0]
	for _, m := range batch {
		f, err := p.js.PublishAsync(p.t.name, m.Payload)
		if err != nil {
			return err
		}
		p.pending = append(p.pending, f)
	}
	for _, f := range p.pending {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// atomically publishes an atomic batch: only its last message is answered.
func (p *natsProducer) atomically(ctx context.Context, batch []load.Message) error {
	id := nats.NewInbox()[len(nats.InboxPrefix):]
	for i, m := range batch {
		msg := &nats.Msg{Subject: p.t.name, Data: m.Payload, Header: nats.Header{
			"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(i + 1)},
		}}
		if i < len(batch)-1 {
			if err := p.t.produce.PublishMsg(msg); err != nil {
				return err
			}
			continue
		}
		msg.Header["Nats-Batch-Commit"] = []string{"1"}
		ack, err := p.js.PublishMsg(ctx, msg)
		if err != nil {
			return err
		}
		if ack.Stream != p.t.name {
			return fmt.Errorf("acknowledged by stream %q", ack.Stream)
		}
	}
	return nil
}

func (p *natsProducer) Close() error {
	p.js.CleanupPublisher()
	return nil
}

func (t *natsTarget) Worker(ctx context.Context) (load.Worker, error) {
	js, err := jetstream.New(t.work)
	if err != nil {
		return nil, err
	}
	c, err := js.Consumer(ctx, t.name, "w")
	if err != nil {
		return nil, err
	}
	w := &natsWorker{nc: t.work, consumer: c, inbox: t.work.NewInbox(),
		acked: make(chan *nats.Msg, 4096)}
	w.sub, err = t.work.ChanSubscribe(w.inbox, w.acked)
	return w, err
}

type natsWorker struct {
	nc       *nats.Conn
	consumer jetstream.Consumer
	running  jetstream.ConsumeContext // from the first Take on
	came     chan jetstream.Msg
	inbox    string
	sub      *nats.Subscription
	acked    chan *nats.Msg
	owed     int // acks that are not answered yet
}

func (w *natsWorker) Take(ctx context.Context, most int) ([]load.Delivery, error) {
	if w.running == nil {
		// Two batches are under way, so that the next is here when one is acked.
		ahead := 2 * most
		w.came = make(chan jetstream.Msg, ahead)
		var err error
		w.running, err = w.consumer.Consume(func(m jetstream.Msg) { w.came <- m },
			jetstream.PullMaxMessages(ahead))
		if err != nil {
			return nil, err
		}
	}
	return receive(ctx, w.came, most, func(m jetstream.Msg) load.Delivery {
		return load.Delivery{Payload: m.Data(), Handle: m.Reply()}
	})
}

// owedSingly is how many acks of single messages may be unanswered: as
// qlogd's Worker, which settles behind its handlers, a worker goes on meanwhile.
const owedSingly = 100

// Ack does what DoubleAck of the client does, for all at once: a request to the
// reply subject of each message, and then as many answers. Those of single
// messages are waited for later; the queue's count is 0 when all have come.
func (w *natsWorker) Ack(ctx context.Context, done []load.Delivery) error {
	for _, d := range done {
		if err := w.nc.PublishRequest(d.Handle.(string), w.inbox, []byte("+ACK")); err != nil {
			return err
		}
	}
	w.owed += len(done)
	most := 0
	if len(done) == 1 {
		most = owedSingly
	}
	for w.owed > 0 {
		var m *nats.Msg
		if w.owed > most {
			select {
			case m = <-w.acked:
			case <-ctx.Done():
				return ctx.Err()
			}
		} else {
			select {
			case m = <-w.acked:
			default:
				return nil
			}
		}
		w.owed--
		if status := m.Header.Get("Status"); status != "" {
			return fmt.Errorf("ack: the server answers %s %s", status, m.Header.Get("Description"))
		}
	}
	return nil
}

func (w *natsWorker) Close() error {
	if w.running != nil {
		w.running.Stop()
		// The callback may wait for room.
		for {
			select {
			case <-w.came:
			case <-w.running.Closed():
				return w.sub.Unsubscribe()
			}
		}
	}
	return w.sub.Unsubscribe()
}
