package peers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// Redis is a stream with a consumer group, in the version of Debian's package,
// with appendonly yes and appendfsync always; the rest is as it comes, but for
// no RDB saves.
//
// Given to it: a batch is a pipeline of XADD (redis.io/docs, "Redis pipelining");
// redis syncs once for all that it reads in one turn of its loop. Single messages
// go through the client's AutoPipeline, which shares round trips among
// goroutines as its README recommends for throughput; so do their acks. Workers
// read with XREADGROUP COUNT BLOCK and settle with XACK and XDEL of the whole
// batch in one pipeline, for a message that was done and not deleted stays in
// the stream. One client for all, with a pool of as many connections as it
// wants.
func Redis() system.System { return &redisSystem{} }

type redisSystem struct {
	server
	queues
	c *redis.Client
}

func (*redisSystem) Name() string { return "redis-always" }

func (*redisSystem) Durable() string {
	return "the message, and an ack, is in the append-only file, after fsync"
}

func (*redisSystem) Missing() string { return system.Lacks("redis-server", "redis-server") }

func (s *redisSystem) Start(ctx context.Context, dir string) error {
	ports, err := system.Ports(1)
	if err != nil {
		return err
	}
	s.proc, err = system.Run(dir, "redis", exec.Command("redis-server",
		"--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always"))
	if err != nil {
		return err
	}
	s.c = redis.NewClient(&redis.Options{
		Addr:     fmt.Sprintf("127.0.0.1:%d", ports[0]),
		PoolSize: 256, ReadTimeout: 30 * time.Second, MaxRetries: -1,
	})
	return s.proc.Ready(ctx, func(ctx context.Context) error { return s.c.Ping(ctx).Err() })
}

func (s *redisSystem) Stop() error {
	if s.c != nil {
		_ = s.c.Close()
	}
	err := s.stop(syscall.SIGTERM)
	*s = redisSystem{}
	return err
}

func (s *redisSystem) Fresh(ctx context.Context) (load.Target, error) {
	if err := s.c.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	t := &redisTarget{c: s.c, name: s.next()}
	var err error
	if t.auto, err = s.c.AutoPipeline(); err != nil {
		return nil, err
	}
	if t.async, err = s.c.AsyncAutoPipeline(); err != nil {
		return nil, err
	}
	return t, s.c.XGroupCreateMkStream(ctx, t.name, "w", "0").Err()
}

type redisTarget struct {
	c     *redis.Client
	auto  *redis.AutoPipeliner
	async *redis.AutoPipeliner // its calls return before they are answered
	name  string
}

func (t *redisTarget) Count(ctx context.Context) (int, error) {
	n, err := t.c.XLen(ctx, t.name).Result()
	return int(n), err
}

func (t *redisTarget) Producer(context.Context) (load.Producer, error) {
	return redisClient{redisTarget: t}, nil
}

func (t *redisTarget) Worker(context.Context) (load.Worker, error) {
	return redisClient{redisTarget: t}, nil
}

type redisClient struct {
	*redisTarget
	open
}

func (p redisClient) Produce(ctx context.Context, batch []load.Message) error {
	if len(batch) == 1 {
		return p.auto.XAdd(ctx, p.entry(&batch[0])).Err()
	}
	_, err := p.c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range batch {
			pipe.XAdd(ctx, p.entry(&batch[i]))
		}
		return nil
	})
	return err
}

func (t *redisTarget) entry(m *load.Message) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: t.name, Values: []any{"p", m.Payload}}
}

func (w redisClient) Take(ctx context.Context, most int) ([]load.Delivery, error) {
	streams, err := w.c.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: "w", Consumer: "w", Streams: []string{w.name, ">"},
		Count: int64(most), Block: time.Second,
	}).Result()
	if errors.Is(err, redis.Nil) || ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []load.Delivery
	for _, s := range streams {
		for _, m := range s.Messages {
			payload, _ := m.Values["p"].(string)
			all = append(all, load.Delivery{Payload: []byte(payload), Handle: m.ID})
		}
	}
	return all, nil
}

func (w redisClient) Ack(ctx context.Context, done []load.Delivery) error {
	ids := make([]string, len(done))
	for i, d := range done {
		ids[i] = d.Handle.(string)
	}
	acked, deleted := w.async.XAck(ctx, w.name, "w", ids...), w.async.XDel(ctx, w.name, ids...)
	if err := acked.Err(); err != nil {
		return err
	}
	return deleted.Err()
}
