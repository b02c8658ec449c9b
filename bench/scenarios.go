package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// group shows what it is worth that the commands of many clients become one
// entry: 64 clients against one, a message a call.
func group(ctx context.Context, s *suite) error {
	n, err := s.start(ctx, "group")
	if err != nil {
		return err
	}
	defer n.stop()
	if err := n.queue(ctx, "q", "unordered"); err != nil {
		return err
	}
	body := payload(s.size)
	var t table
	for range s.rounds {
		var rate [2]float64
		for i, clients := range []int{1, 64} {
			commands, entries := n.metric("qlogd_entry_commands_sum"), n.metric("qlogd_entry_commands_count")
			calls, lat, sec, err := during(s.slice, clients, func(int) error {
				_, err := n.c.Produce(ctx, "q", batch(1, 0, 0, body)...)
				return err
			})
			if err != nil {
				return err
			}
			rate[i] = float64(calls) / sec
			t.add(rate[i], "%d clients: messages/s", clients)
			t.add(lat.ms(50), "%d clients: p50 ms", clients)
			t.add(lat.ms(99), "%d clients: p99 ms", clients)
			t.add((n.metric("qlogd_entry_commands_sum")-commands)/(n.metric("qlogd_entry_commands_count")-entries), "%d clients: commands an entry", clients)
		}
		t.add(rate[1]/rate[0], "64 clients : 1 client, messages/s")
	}
	t.print()
	return nil
}

// flat shows that a call costs the same however much waits: 100 messages
// enqueued, leased and acked by one client, beside few and many others.
func flat(ctx context.Context, s *suite) error {
	few := min(1000, s.messages)
	states := []struct {
		name           string
		ordering       string
		messages, keys int
		n              *node
		next           int
	}{
		{name: fmt.Sprintf("unordered, %d waiting", few), ordering: "unordered", messages: few},
		{name: fmt.Sprintf("unordered, %d waiting", s.messages), ordering: "unordered", messages: s.messages},
		{name: fmt.Sprintf("per_key, %d waiting, %d keys", few, few), ordering: "per_key", messages: few, keys: few},
		{name: fmt.Sprintf("per_key, %d waiting, %d keys", s.messages, s.keys), ordering: "per_key", messages: s.messages, keys: s.keys},
		{name: fmt.Sprintf("per_key, %d waiting, 1 key", few), ordering: "per_key", messages: few, keys: 1},
		{name: fmt.Sprintf("per_key, %d waiting, 1 key", s.messages), ordering: "per_key", messages: s.messages, keys: 1},
	}
	for i := range states {
		st := &states[i]
		var err error
		// No checkpoint in the middle of a measurement: they have their own.
		if st.n, err = s.start(ctx, fmt.Sprintf("flat%d", i), "--checkpoint-entries=1000000000", "--checkpoint-interval=24h"); err != nil {
			return err
		}
		defer st.n.stop()
		if err := st.n.queue(ctx, "q", st.ordering); err != nil {
			return err
		}
		if err := st.n.fill(ctx, "q", st.messages, st.keys, s.size); err != nil {
			return err
		}
		if _, _, err := st.n.rss(); err != nil { // a collection now, not in the middle
			return err
		}
	}
	body := payload(s.size)
	var t table
	for range s.rounds {
		base := map[string]float64{}
		for i := range states {
			st := &states[i]
			each := 100
			if st.keys == 1 {
				each = 1 // a key has one message out at a time
			}
			var enqueue, lease, ack took
			cpu := st.n.cpu()
			calls, _, _, err := during(s.slice, 1, func(int) error {
				t0 := time.Now()
				if _, err := st.n.c.Produce(ctx, "q", batch(each, st.next, st.keys, body)...); err != nil {
					return err
				}
				st.next += each
				t1 := time.Now()
				got, err := st.n.lease(ctx, "q", each)
				if err != nil {
					return err
				}
				t2 := time.Now()
				if err := st.n.ack(ctx, "q", got); err != nil {
					return err
				}
				enqueue.all, lease.all, ack.all = append(enqueue.all, t1.Sub(t0)), append(lease.all, t2.Sub(t1)), append(ack.all, time.Since(t2))
				if len(got) != each {
					return fmt.Errorf("%d leased of %d", len(got), each)
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
			per := (st.n.cpu() - cpu).Seconds() * 1e6 / float64(calls*each)
			t.add(per, "%s: server's CPU µs a message", st.name)
			t.add(enqueue.ms(50), "%s: enqueue %d, p50 ms", st.name, each)
			t.add(lease.ms(50), "%s: lease %d, p50 ms", st.name, each)
			t.add(ack.ms(50), "%s: ack %d, p50 ms", st.name, each)
			if i%2 == 0 {
				base["cpu"], base["e"], base["l"], base["a"] = per, enqueue.ms(50), lease.ms(50), ack.ms(50)
			} else {
				t.add(per/base["cpu"], "%s : few, CPU", st.name)
				t.add(enqueue.ms(50)/base["e"], "%s : few, enqueue", st.name)
				t.add(lease.ms(50)/base["l"], "%s : few, lease", st.name)
				t.add(ack.ms(50)/base["a"], "%s : few, ack", st.name)
			}
		}
	}
	t.print()
	return nil
}

// memory shows what a waiting message costs: growth of the resident memory
// after a collection.
func memory(ctx context.Context, s *suite) error {
	var t table
	for _, keys := range []int{0, 1000} {
		n, err := s.start(ctx, "memory")
		if err != nil {
			return err
		}
		ordering := "unordered"
		if keys > 0 {
			ordering = "per_key"
		}
		err = n.queue(ctx, "q", ordering)
		if err != nil {
			n.stop()
			return err
		}
		empty, _, err := n.rss()
		// Fill what is bounded first (the log's cache, the buffers of Raft's log,
		// connections), with few messages that are large: it is not counted as
		// messages.
		for i := 0; err == nil && i < 800; i++ {
			_, err = n.c.Produce(ctx, "q", batch(1, i, keys, payload(900<<10))...)
		}
		if err != nil {
			n.stop()
			return err
		}
		all, anon, err := n.rss()
		if err == nil {
			err = n.fill(ctx, "q", s.messages, keys, s.size)
		}
		if err != nil {
			n.stop()
			return err
		}
		m := float64(s.messages)
		for range s.rounds {
			time.Sleep(2 * time.Second) // what works behind comes to rest
			all2, anon2, err := n.rss()
			if err != nil {
				n.stop()
				return err
			}
			what := fmt.Sprintf("%s, %d keys, %d messages", ordering, keys, s.messages)
			t.add(float64(all2-all)/m, "%s: bytes RSS", what)
			t.add(float64(anon2-anon)/m, "%s: bytes RSS less files", what)
			t.add(float64(all2-empty)/m, "%s: bytes RSS with caches and buffers", what)
			t.add(float64(empty)/1e6, "%s: MB RSS before anything", what)
			t.add(float64(all)/1e6, "%s: MB RSS with full caches", what)
			t.add(float64(all2)/1e6, "%s: MB RSS at the end", what)
		}
		n.stop()
	}
	t.print()
	return nil
}

// checkpoint shows what writing checkpoints of many messages does to those who
// produce meanwhile: one node writes them one after another, the other none.
func checkpoint(ctx context.Context, s *suite) error {
	var nodes [2]*node
	for i, flags := range [][]string{
		{"--checkpoint-entries=1000000000", "--checkpoint-interval=24h"},
		{"--checkpoint-entries=1000000000", "--checkpoint-interval=2s"},
	} {
		n, err := s.start(ctx, fmt.Sprintf("checkpoint%d", i), flags...)
		if err != nil {
			return err
		}
		defer n.stop()
		nodes[i] = n
		if err := n.queue(ctx, "q", "unordered"); err != nil {
			return err
		}
		if err := n.fill(ctx, "q", s.messages, 0, s.size); err != nil {
			return err
		}
	}
	body := payload(s.size)
	var t table
	for range s.rounds {
		for i, n := range nodes {
			what := [2]string{"no checkpoint", "checkpoints"}[i]
			held, times := n.metric("qlogd_checkpoint_hold_seconds_sum"), n.metric("qlogd_checkpoint_hold_seconds_count")
			wrote := n.metric("qlogd_checkpoint_seconds_sum")
			// Paced, so that it shows waiting and not what two cores can do.
			_, lat, sec, err := during(4*s.slice, 8, func(int) error {
				_, err := n.c.Produce(ctx, "q", batch(1, 0, 0, body)...)
				return err
			})
			if err != nil {
				return err
			}
			t.add(float64(len(lat.all))/sec, "%s: messages/s", what)
			for _, p := range []float64{50, 99, 99.9, 100} {
				t.add(lat.ms(p), "%s: produce p%g ms", what, p)
			}
			if got := n.metric("qlogd_checkpoint_hold_seconds_count") - times; got > 0 {
				t.add(got, "%s: how many", what)
				t.add((n.metric("qlogd_checkpoint_hold_seconds_sum")-held)/got*1000, "%s: mean hold ms", what)
				t.add((n.metric("qlogd_checkpoint_seconds_sum")-wrote)/got*1000, "%s: mean ms to write", what)
			}
		}
	}
	t.print()
	b, err := fetch("GET", nodes[1].http+"/metrics")
	if err == nil {
		printBuckets(string(b), "qlogd_checkpoint_hold_seconds")
	}
	return err
}

// restart shows how long it takes until a node serves again, from a checkpoint
// and from the log alone, after a kill and after SIGTERM.
func restart(ctx context.Context, s *suite) error {
	var t table
	for _, from := range []struct {
		name  string
		size  int
		flags []string
	}{
		{"checkpoint and log behind it", s.size, []string{"--checkpoint-entries=300"}},
		// Small payloads: Raft's entries stay below the 256 MiB at which a
		// checkpoint is taken in any case.
		{"log alone, 100 B payloads", 100, []string{"--checkpoint-entries=1000000000", "--checkpoint-interval=24h"}},
	} {
		n, err := s.start(ctx, "restart", from.flags...)
		if err != nil {
			return err
		}
		if err = n.queue(ctx, "q", "unordered"); err == nil {
			err = n.fill(ctx, "q", s.messages, 0, from.size)
		}
		for i := 0; i < 2*s.rounds && err == nil; i++ {
			how := "kill -9"
			if i%2 == 0 {
				n.kill()
			} else {
				how = "SIGTERM"
				began := time.Now()
				if err = n.term(); err != nil {
					break
				}
				t.add(time.Since(began).Seconds(), "%s: s to end after SIGTERM", from.name)
			}
			began := time.Now()
			if n, err = s.start(ctx, "restart", from.flags...); err != nil {
				return err
			}
			t.add(time.Since(began).Seconds(), "%s, %s: s until it serves", from.name, how)
			q, err := n.c.Queue(ctx, "q")
			if err == nil && q.Stats.Depth != int64(s.messages) {
				err = fmt.Errorf("%d messages of %d are there", q.Stats.Depth, s.messages)
			}
			if err != nil {
				n.stop()
				return err
			}
		}
		n.stop()
		if err != nil {
			return err
		}
	}
	t.print()
	return nil
}

// verify shows how fast a log is verified: every byte read, hashed and folded.
func verify(ctx context.Context, s *suite) error {
	n, err := s.start(ctx, "verify")
	if err != nil {
		return err
	}
	defer os.RemoveAll(n.dir)
	err = n.queue(ctx, "q", "per_key")
	if err == nil {
		err = n.fill(ctx, "q", s.messages, s.keys, s.size)
	}
	// A third is worked off, so that there are events of other kinds.
	for done := 0; err == nil && done < s.messages/3; {
		var got int
		if got, err = n.cycle(ctx, "q", 1000); got == 0 {
			break
		}
		done += got
	}
	if err != nil {
		n.kill()
		return err
	}
	if err := n.term(); err != nil {
		return err
	}
	var t table
	for range s.rounds {
		began := time.Now()
		cmd := exec.CommandContext(ctx, s.bin, "replay", "--verify", "--data-dir", n.dir, "--output", "json")
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("replay --verify: %w\n%s", err, out)
		}
		sec := time.Since(began).Seconds()
		var r struct {
			Verify struct {
				OK                         bool
				Bytes, Events, Checkpoints int64
			} `json:"verify"`
		}
		if err := json.Unmarshal(out, &r); err != nil || !r.Verify.OK {
			return fmt.Errorf("replay --verify: %w: %s", err, out)
		}
		t.add(sec, "s")
		t.add(float64(r.Verify.Bytes)/1e6/sec, "MB/s of %d MB", r.Verify.Bytes/1e6)
		t.add(float64(r.Verify.Events)/sec, "events/s of %d", r.Verify.Events)
		t.add(float64(r.Verify.Checkpoints), "checkpoints compared")
		t.add((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), "CPU s")
	}
	t.add(float64(size(filepath.Join(n.dir, "log")))/1e6, "MB in log/")
	t.print()
	return nil
}
