package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// life drives one message through all that can happen to it, and returns its ids
// in the order in which it had them.
func life(n *testNode) (ids []string) {
	n.Helper()
	n.put("jobs", `{"delivery":{"dead_letter_queue":"auto","max_attempts":3,
		"initial_backoff_ms":0,"lease_ms":60000}}`)
	m := client.JSON(map[string]int{"amount": 1})
	m.Key, m.Kind = "customer-1", "charge"
	ids = n.produce("jobs", m)
	lease := func(worker string, d time.Duration) wire.LeasedMessage {
		n.Helper()
		got := n.lease("jobs", client.LeaseOptions{Worker: worker, Lease: d, Wait: 30 * time.Second})
		require.Equal(n, len(got), 1, "%s leased", worker)
		return got[0]
	}
	retry := func(worker, why string) {
		n.Helper()
		held := lease(worker, time.Minute)
		must(n.RetryOne(n.Context(), held.LeaseID, wire.RetryOne{Error: why}))
	}
	lease("lost", 150*time.Millisecond) // its worker is lost
	retry("clumsy", "timeout of the bank")
	retry("strict", "no such account") // the last attempt
	var replayed wire.DeadMoved
	n.call("POST", "/v1/queues/jobs/dead/replay", fmt.Sprintf(
		`{"message_ids":[%q],"edit":{%[1]q:{"payload":{"amount":2}}}}`, ids[0]), &replayed)
	moved := replayed.Messages[0]
	ids = append(ids, moved.MessageID, moved.NewMessageID)
	held := lease("patient", time.Minute)
	require.Equal(n, string(held.Payload), `{"amount":2}`, "replayed with %s", held.Payload)
	must(n.AckOne(n.Context(), held.LeaseID, wire.AckOne{Result: []byte(`"paid"`)}))
	return ids
}

// output runs a command of the program, which must succeed, and returns what it printed.
func output(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), cluster.Binary(t), args...).Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%v: %v, %s%s", args, err, out, e.Stderr)
	}
	require.NoError(t, err)
	return out
}

// lines runs a command and returns what it printed, line by line, as JSON.
func lines(t *testing.T, args ...string) (out []map[string]any) {
	t.Helper()
	for dec := json.NewDecoder(bytes.NewReader(output(t, args...))); dec.More(); {
		var v map[string]any
		require.NoError(t, dec.Decode(&v))
		out = append(out, v)
	}
	return out
}

// replayed returns the events that replay prints.
func replayed(t *testing.T, args ...string) (out []map[string]any) {
	t.Helper()
	for _, l := range lines(t, append([]string{"replay", "-o", "json"}, args...)...) {
		if e, ok := l["event"].(map[string]any); ok {
			out = append(out, e)
		}
	}
	return out
}

// A message that was produced, leased, lost its worker, was retried, died, was replayed with an
// edit and acked: the log of a data directory, a server's HTTP history, and replay asking a
// server have the same events under each of its ids, while it runs and when it has stopped.
func TestALifeIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	n := startTest(t, "")
	ids := life(n)
	same := func(what string, want, got any) {
		t.Helper()
		assert.Equal(t, cmp.Diff(want, got), "", "%s", what)
	}
	history := func(id string) []map[string]any {
		return lines(t, "message", "history", id, "--addr", n.addr, "-o", "json")
	}
	life := history(ids[0])
	var types []any
	for _, e := range life {
		types = append(types, e["type"])
	}
	same("types", []any{
		// as it was produced
		"enqueued", "leased", "lease_expired", "leased", "retried", "leased", "dead_lettered",
		"replayed",        // in the dead-letter queue
		"leased", "acked", // as it was replayed
	}, types)
	for _, id := range ids {
		same("history by "+id, life, history(id))
		same("the log by "+id, life, replayed(t, "--data-dir", n.dir, "--message", id))
		same("the server by "+id, life, replayed(t, "--addr", n.addr, "--message", id))
	}
	// Both ends are inclusive, wherever it is asked.
	from, to := life[3]["event_id"].(string), fmt.Sprintf("index:%.0f", life[7]["index"])
	for _, source := range [][]string{{"--data-dir", n.dir}, {"--addr", n.addr}} {
		same("a part", life[3:8], replayed(t,
			append(source, "--message", ids[1], "--from", from, "--to", to)...))
	}

	// The fold of the log is what the server says, replays and all.
	n.produce("jobs", client.JSON("dies"))
	n.die(n.lease("jobs", client.LeaseOptions{})[0], "no")
	n.call("POST", "/v1/messages/"+ids[2]+"/resurrect", `{"queue":"jobs.dlq"}`, nil)
	diff := lines(t, "replay", "--diff", "--data-dir", n.dir, "--against", n.addr, "-o", "json")
	assert.True(t, len(diff) == 1 && diff[0]["compare"].(map[string]any)["differences"] == 0.0,
		"the log against the live state: %v", diff)
	life = history(ids[0])
	last := life[len(life)-1]
	assert.True(t, last["type"] == "resurrected" && last["to_queue"] == "jobs.dlq", "%v", last)

	n.stop()
	same("the log of a stopped node", life, replayed(t, "--data-dir", n.dir, "--message", ids[2]))
	// And for people: every step with who, why and what.
	text := string(output(t, "replay", "--data-dir", n.dir, "--message", ids[2]))
	for _, want := range []string{"by lost", "timeout of the bank", "no such account",
		"max_attempts", "died in jobs", "edited", "order append", "by patient"} {
		assert.Contains(t, text, want, "is missing:")
	}
}
