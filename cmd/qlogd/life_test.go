package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// life drives one message through all that can happen to it, and returns its ids
// in the order in which it had them.
func life(t *testing.T, n *node, c *client.Client) (ids []string) {
	t.Helper()
	ctx := t.Context()
	var policy wire.PolicyUpdate
	if err := wire.Decode([]byte(`{"delivery":{"dead_letter_queue":"auto","max_attempts":3,"initial_backoff_ms":0,"lease_ms":60000}}`), &policy); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.PutQueue(ctx, "jobs", policy); err != nil {
		t.Fatal(err)
	}
	m := client.JSON(map[string]int{"amount": 1})
	m.Key, m.Kind = "customer-1", "charge"
	ids = append(ids, must[[]wire.Produced](t)(c.Produce(ctx, "jobs", m))[0].ID)
	lease := func(worker string, ms int64) wire.LeasedMessage {
		t.Helper()
		got := must[[]wire.LeasedMessage](t)(c.Lease(ctx, "jobs", client.LeaseOptions{Worker: worker, Lease: time.Duration(ms) * time.Millisecond, Wait: 5 * time.Second}))
		if len(got) != 1 {
			t.Fatalf("%s leased %d", worker, len(got))
		}
		return got[0]
	}
	lease("lost", 150) // its worker is lost
	held := lease("clumsy", 60_000)
	must[*wire.SettleResult](t)(c.RetryOne(ctx, held.LeaseID, wire.RetryOne{Error: "timeout of the bank"}))
	held = lease("strict", 60_000)
	must[*wire.SettleResult](t)(c.RetryOne(ctx, held.LeaseID, wire.RetryOne{Error: "no such account"})) // the last attempt
	post := func(path, body string) map[string]any {
		t.Helper()
		r, err := http.Post("http://"+n.httpLis.Addr().String()+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode/100 != 2 {
			t.Fatalf("%s: %d %s %v", path, r.StatusCode, b, err)
		}
		var v map[string]any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	v := post("/v1/queues/jobs/dead/replay", `{"message_ids":["`+ids[0]+`"],"edit":{"`+ids[0]+`":{"payload":{"amount":2}}}}`)
	moved := v["messages"].([]any)[0].(map[string]any)
	ids = append(ids, moved["message_id"].(string), moved["new_message_id"].(string))
	held = lease("patient", 60_000)
	if string(held.Payload) != `{"amount":2}` {
		t.Fatalf("replayed with %s", held.Payload)
	}
	must[*wire.SettleResult](t)(c.AckOne(ctx, held.LeaseID, wire.AckOne{Result: []byte(`"paid"`)}))
	return ids
}

// lines runs a command and returns what it printed, line by line, as JSON.
func lines(t *testing.T, args ...string) (out []map[string]any) {
	t.Helper()
	var said, complaint bytes.Buffer
	if code := run(t.Context(), args, nil, &said, &complaint); code != 0 {
		t.Fatalf("%v: %d, %s%s", args, code, &said, &complaint)
	}
	for dec := json.NewDecoder(&said); dec.More(); {
		var v map[string]any
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// TestALifeIsToldTheSameEverywhere: a message that was produced, leased, lost
// its worker, was retried, died, was replayed with an edit and acked. The log of
// a data directory, a server's HTTP history, and replay asking a server tell the
// same events under each of its ids, while it runs and when it has stopped.
func TestALifeIsToldTheSameEverywhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir)
	ids := life(t, n, c)
	addr := "http://" + n.httpLis.Addr().String()

	want := []string{
		"enqueued", "leased", "lease_expired", "leased", "retried", "leased", "dead_lettered", // as it was produced
		"replayed",        // in the dead-letter queue
		"leased", "acked", // as it was replayed
	}
	told := lines(t, "message", "history", ids[0], "--addr", addr, "-o", "json")
	var types []string
	for _, e := range told {
		types = append(types, e["type"].(string))
	}
	if d := cmp.Diff(want, types); d != "" {
		t.Fatal(d)
	}
	events := func(lines []map[string]any) (out []map[string]any) {
		for _, l := range lines {
			if e, ok := l["event"].(map[string]any); ok {
				out = append(out, e)
			}
		}
		return out
	}
	for _, id := range ids {
		if d := cmp.Diff(told, lines(t, "message", "history", id, "--addr", addr, "-o", "json")); d != "" {
			t.Errorf("history by %s: %s", id, d)
		}
		if d := cmp.Diff(told, events(lines(t, "replay", "--data-dir", dir, "--message", id, "-o", "json"))); d != "" {
			t.Errorf("the log by %s: %s", id, d)
		}
		if d := cmp.Diff(told, events(lines(t, "replay", "--addr", addr, "--message", id, "-o", "json"))); d != "" {
			t.Errorf("the server by %s: %s", id, d)
		}
	}
	// Both ends are inclusive, wherever it is asked.
	from, to := told[3]["event_id"].(string), fmt.Sprintf("index:%.0f", told[7]["index"])
	part := events(lines(t, "replay", "--data-dir", dir, "--message", ids[1], "--from", from, "--to", to, "-o", "json"))
	if d := cmp.Diff(told[3:8], part); d != "" {
		t.Errorf("a part of the log: %s", d)
	}
	if d := cmp.Diff(part, events(lines(t, "replay", "--addr", addr, "--message", ids[1], "--from", from, "--to", to, "-o", "json"))); d != "" {
		t.Errorf("a part of the server: %s", d)
	}

	// What became of it under each id, and each attempt with its error.
	m := must[*wire.Message](t)(c.Message(t.Context(), ids[0]))
	if m.State != "dead_lettered" || string(m.Payload) != `{"amount":1}` || m.Key != "customer-1" || m.MovedTo == nil || m.MovedTo.MessageID != ids[1] || len(m.History) != len(want) {
		t.Errorf("as it was produced: %+v", m)
	}
	m = must[*wire.Message](t)(c.Message(t.Context(), ids[1]))
	if m.State != "replayed" || m.Queue != "jobs.dlq" || string(m.Payload) != `{"amount":1}` || m.Dead == nil || m.Dead.Error != "no such account" || m.MovedTo.MessageID != ids[2] {
		t.Errorf("as it was dead: %+v", m)
	}
	m = must[*wire.Message](t)(c.Message(t.Context(), ids[2]))
	if m.State != "acked" || string(m.Payload) != `{"amount":2}` || m.Key != "customer-1" || m.Kind != "charge" || string(m.Result) != `"paid"` ||
		m.Origin == nil || m.Origin.FirstMessageID != ids[0] || m.Origin.FromMessageID != ids[1] || m.Origin.Replays != 1 {
		t.Errorf("as it was replayed: %+v", m)
	}
	type attempt struct {
		Attempt                int64
		Worker, Outcome, Error string
	}
	var attempts []attempt
	for _, a := range m.Attempts {
		attempts = append(attempts, attempt{a.Attempt, a.Worker, a.Outcome, a.Error})
		if a.DurationMS == nil || *a.DurationMS != int64(a.EndedAt-a.LeasedAt) {
			t.Errorf("%+v", a)
		}
	}
	if d := cmp.Diff([]attempt{
		{1, "lost", "lease_expired", ""}, {2, "clumsy", "retried", "timeout of the bank"}, {3, "strict", "dead_lettered", "no such account"}, {1, "patient", "acked", ""},
	}, attempts); d != "" {
		t.Error(d)
	}

	// The fold of the log is what the server says, replays and all.
	must[[]wire.Produced](t)(c.Produce(t.Context(), "jobs", client.JSON("dies")))
	held := must[[]wire.LeasedMessage](t)(c.Lease(t.Context(), "jobs", client.LeaseOptions{}))
	must[*wire.SettleResult](t)(c.DeadLetterOne(t.Context(), held[0].LeaseID, wire.DeadLetterOne{Error: "no"}))
	call(t, n, "POST", "/v1/messages/"+ids[2]+"/resurrect", `{"queue":"jobs.dlq"}`, nil)
	if got := lines(t, "replay", "--diff", "--data-dir", dir, "--against", addr, "-o", "json"); len(got) != 1 || got[0]["compare"].(map[string]any)["differences"] != 0.0 {
		t.Errorf("the log against the live state: %v", got)
	}
	changed := map[string]int{} // since it was acked
	for _, l := range lines(t, "replay", "--diff", "--data-dir", dir, "--from", told[len(told)-1]["event_id"].(string), "-o", "json") {
		d := l["diff"].(map[string]any)
		if after, ok := d["after"].(map[string]any); ok && d["message_id"] != nil {
			changed[after["state"].(string)]++
		}
	}
	if d := cmp.Diff(map[string]int{"ready": 2, "dead_lettered": 1}, changed); d != "" {
		t.Errorf("what changed: %s", d)
	}
	told = lines(t, "message", "history", ids[0], "--addr", addr, "-o", "json")
	if last := told[len(told)-1]; last["type"] != "resurrected" || last["to_queue"] != "jobs.dlq" {
		t.Errorf("%v", last)
	}

	stopNode(t, n)
	if d := cmp.Diff(told, events(lines(t, "replay", "--data-dir", dir, "--message", ids[2], "-o", "json"))); d != "" {
		t.Errorf("the log of a stopped node: %s", d)
	}
	// And for people: every step with who, why and what.
	var said, complaint bytes.Buffer
	if code := run(t.Context(), []string{"replay", "--data-dir", dir, "--message", ids[2]}, nil, &said, &complaint); code != 0 {
		t.Fatalf("%d %s", code, &complaint)
	}
	for _, text := range []string{"by lost", "timeout of the bank", "no such account", "max_attempts", "died in jobs", "edited", "order append", "by patient"} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("%q is not told:\n%s", text, &said)
		}
	}
}
