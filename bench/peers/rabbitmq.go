package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// RabbitMQ is a quorum queue with as many replicas as there are nodes, one or
// three, in the version of Debian's package.
//
// Given to it: publisher confirms, of a batch all at once and then waited for
// (rabbitmq.com/docs/confirms: "publish a batch, wait for outstanding confirms"
// and, better, streaming them, which this is); prefetch of two batches, one ack
// with multiple set for each batch; a connection with one channel for each
// producer and worker, made to the node that leads the queue; Erlang's busy
// waiting off, as rabbitmq.com/docs/runtime says for machines whose cores are
// shared (three nodes on two cores are slower with it).
//
// AMQP does not confirm acks. Ack returns when the frame is written; Count is 0
// when the queue is really empty.
func RabbitMQ(nodes int) system.System { return &rabbit{nodes: nodes} }

type rabbit struct {
	nodes int

	dir   string
	epmd  *system.Process
	procs system.Processes
	urls  map[string]string // by the node's name
	env   []string          // of rabbitmqctl
	admin *amqp.Connection
	last  *rabbitTarget
	queues
}

// Debian's wrappers in /usr/sbin change user and directory: these do not.
const rabbitBin = "/usr/lib/rabbitmq/bin/"

func (s *rabbit) Name() string { return fmt.Sprint("rabbitmq-", s.nodes) }

func (s *rabbit) Durable() string {
	if s.nodes > 1 {
		return "the message is in the Raft log of a majority, after fsync there; " +
			"acks are not confirmed"
	}
	return "the message is in the node's Raft log, after fsync; acks are not confirmed"
}

func (s *rabbit) Missing() string {
	return system.Lacks("rabbitmq-server",
		rabbitBin+"rabbitmq-server", rabbitBin+"rabbitmqctl", "epmd")
}

func (s *rabbit) Start(ctx context.Context, dir string) error {
	ports, err := system.Ports(1 + 2*s.nodes)
	if err != nil {
		return err
	}
	s.dir = dir
	// A cookie, a port mapper and a home of our own keep this cluster apart from
	// any other Erlang on the machine.
	cookie := filepath.Join(dir, ".erlang.cookie")
	if err := os.WriteFile(cookie, []byte("BENCHBENCHBENCHBENCH"), 0o400); err != nil {
		return err
	}
	base := append(os.Environ(), "HOME="+dir, fmt.Sprint("ERL_EPMD_PORT=", ports[0]),
		"ERL_EPMD_ADDRESS=127.0.0.1", "RABBITMQ_CONF_ENV_FILE=/dev/null")
	epmd := exec.Command("epmd", "-port", strconv.Itoa(ports[0]), "-address", "127.0.0.1")
	epmd.Env = base
	if s.epmd, err = system.Run(dir, "epmd", epmd); err != nil {
		return err
	}
	var names []string
	for i := range s.nodes {
		names = append(names, fmt.Sprintf("q%d@localhost", i+1))
	}
	s.env = append(base, "RABBITMQ_NODENAME="+names[0])
	s.urls = map[string]string{}
	for i, name := range names {
		home := filepath.Join(dir, fmt.Sprint("n", i+1))
		if err := os.Mkdir(home, 0o755); err != nil {
			return err
		}
		s.urls[name] = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", ports[1+2*i])
		var c strings.Builder
		fmt.Fprintf(&c, "listeners.tcp.1 = 127.0.0.1:%d\n", ports[1+2*i])
		c.WriteString("log.console = true\nlog.console.level = warning\nlog.file = false\n")
		c.WriteString("cluster_formation.peer_discovery_backend = classic_config\n")
		for j, n := range names {
			fmt.Fprintf(&c, "cluster_formation.classic_config.nodes.%d = %s\n", j+1, n)
		}
		conf := filepath.Join(home, "rabbitmq.conf")
		plugins := filepath.Join(home, "enabled_plugins")
		err := errors.Join(os.WriteFile(conf, []byte(c.String()), 0o644),
			os.WriteFile(plugins, []byte("[].\n"), 0o644))
		if err != nil {
			return err
		}
		cmd := exec.Command(rabbitBin + "rabbitmq-server")
		cmd.Dir = home
		cmd.Env = append(base,
			"RABBITMQ_NODENAME="+name,
			fmt.Sprint("RABBITMQ_DIST_PORT=", ports[2+2*i]),
			"RABBITMQ_CONFIG_FILE="+conf,
			"RABBITMQ_ENABLED_PLUGINS_FILE="+plugins,
			"RABBITMQ_MNESIA_BASE="+filepath.Join(home, "mnesia"),
			"RABBITMQ_LOG_BASE="+filepath.Join(home, "log"),
			"RABBITMQ_PID_FILE="+filepath.Join(home, "pid"),
			// With it the script becomes the node and does not stay as its parent.
			"RABBITMQ_ALLOW_INPUT=1",
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-noinput "+
				"+sbwt none +sbwtdcpu none +sbwtdio none",
		)
		p, err := system.Run(dir, fmt.Sprint("n", i+1), cmd)
		if err != nil {
			return err
		}
		s.procs = append(s.procs, p)
		if i == 0 { // it makes the cluster, the others find it
			if err := s.ready(ctx, name, p); err != nil {
				return err
			}
		}
	}
	for i, p := range s.procs {
		if err := s.ready(ctx, names[i], p); err != nil {
			return err
		}
	}
	out, err := s.ctl(ctx, "await_online_nodes", strconv.Itoa(s.nodes), "--timeout", "60")
	if err != nil {
		return fmt.Errorf("await_online_nodes: %w: %s", err, out)
	}
	s.admin, err = amqp.Dial(s.urls[names[0]])
	return err
}

// ready waits until a node answers AMQP.
func (s *rabbit) ready(ctx context.Context, name string, p *system.Process) error {
	return p.Ready(ctx, func(context.Context) error {
		soon := amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)}
		c, err := amqp.DialConfig(s.urls[name], soon)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (s *rabbit) ctl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, rabbitBin+"rabbitmqctl", append([]string{"-q"}, args...)...)
	cmd.Env, cmd.Dir = s.env, s.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// PIDs are the Erlang machines: their helpers come and go and use nothing.
func (s *rabbit) PIDs() []int {
	var all []int
	for _, pid := range s.procs.PIDs() {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if strings.HasPrefix(string(name), "beam") {
			all = append(all, pid)
		}
	}
	return all
}

func (s *rabbit) Stop() error {
	s.last.close()
	if s.admin != nil {
		_ = s.admin.Close()
	}
	// SIGTERM makes nodes hand over and wait for each other; nobody needs their data.
	_ = s.procs.Stop(syscall.SIGKILL)
	if s.epmd != nil {
		s.epmd.Kill()
	}
	*s = rabbit{nodes: s.nodes}
	return nil
}

func (s *rabbit) Fresh(ctx context.Context) (load.Target, error) {
	ch, err := s.admin.Channel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	if s.last != nil {
		name := s.last.name
		s.last.close()
		s.last = nil
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			return nil, err
		}
	}
	// The node that declares a queue leads it.
	t := &rabbitTarget{s: s, name: s.next(), url: s.urls["q1@localhost"]}
	_, err = ch.QueueDeclare(t.name, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-quorum-initial-group-size": s.nodes,
		"x-queue-leader-locator": "client-local",
	})
	if err != nil {
		return nil, err
	}
	s.last = t
	return t, nil
}

type rabbitTarget struct {
	s    *rabbit
	name string
	url  string

	mu    sync.Mutex
	conns []*amqp.Connection
}

func (t *rabbitTarget) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.conns {
		_ = c.Close()
	}
	t.conns = nil
}

func (t *rabbitTarget) channel() (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(t.url)
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	t.conns = append(t.conns, conn)
	t.mu.Unlock()
	ch, err := conn.Channel()
	return conn, ch, err
}

// Count asks rabbitmqctl, because AMQP reports ready messages only: a second of
// the processor's time.
func (t *rabbitTarget) Count(ctx context.Context) (int, error) {
	out, err := t.s.ctl(ctx, "list_queues", "--no-table-headers", "name", "messages")
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == t.name {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("list_queues does not list %s: %q", t.name, out)
}

func (t *rabbitTarget) Producer(context.Context) (load.Producer, error) {
	conn, ch, err := t.channel()
	if err != nil {
		return nil, err
	}
	return &rabbitProducer{queue: t.name, conn: conn, ch: ch}, ch.Confirm(false)
}

type rabbitProducer struct {
	queue   string
	conn    *amqp.Connection
	ch      *amqp.Channel
	pending []*amqp.DeferredConfirmation
}

func (p *rabbitProducer) Produce(ctx context.Context, batch []load.Message) error {
	p.pending = p.pending[:0]
	for _, m := range batch {
		d, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, "", p.queue, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: m.Payload})
		if err != nil {
			return err
		}
		p.pending = append(p.pending, d)
	}
	for _, d := range p.pending {
		ok, err := d.WaitContext(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return errors.New("the server refused a message")
		}
	}
	return nil
}

func (p *rabbitProducer) Close() error { return p.conn.Close() }

func (t *rabbitTarget) Worker(context.Context) (load.Worker, error) {
	conn, ch, err := t.channel()
	if err != nil {
		return nil, err
	}
	return &rabbitWorker{queue: t.name, conn: conn, ch: ch}, nil
}

type rabbitWorker struct {
	queue string
	conn  *amqp.Connection
	ch    *amqp.Channel
	came  <-chan amqp.Delivery // from the first Take on
	acked uint64               // all deliveries up to this tag are
}

func (w *rabbitWorker) Take(ctx context.Context, most int) ([]load.Delivery, error) {
	if w.came == nil {
		if err := w.ch.Qos(2*most, 0, false); err != nil {
			return nil, err
		}
		var err error
		if w.came, err = w.ch.Consume(w.queue, "", false, false, false, false, nil); err != nil {
			return nil, err
		}
	}
	return receive(ctx, w.came, most, func(m amqp.Delivery) load.Delivery {
		return load.Delivery{Payload: m.Body, Handle: m.DeliveryTag}
	})
}

// Ack acks with one frame where all before the newest are acked with it.
func (w *rabbitWorker) Ack(_ context.Context, done []load.Delivery) error {
	newest := w.acked
	for _, d := range done {
		newest = max(newest, d.Handle.(uint64))
	}
	if newest-w.acked == uint64(len(done)) {
		w.acked = newest
		return w.ch.Ack(newest, true)
	}
	for _, d := range done {
		if err := w.ch.Ack(d.Handle.(uint64), false); err != nil {
			return err
		}
	}
	return nil
}

func (w *rabbitWorker) Close() error { return w.conn.Close() }
