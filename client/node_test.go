package client_test

import (
	"context"
	"errors"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestNames: what is exported names no type of package wire, which users do not import, but for the
// aliases that they use instead.
func TestNames(t *testing.T) {
	doc, err := exec.Command("go", "doc", "-all", ".").Output()
	require.NoError(t, err)
	alias := regexp.MustCompile(`^(type |\t)\w+(\[T any\])? += wire\.\w+(\[T\])?\n$`)
	aliases := 0
	for line := range strings.Lines(string(doc)) {
		if alias.MatchString(line) {
			aliases++
		} else if strings.Contains(line, "wire.") {
			t.Error(line)
		}
	}
	require.True(t, aliases > 50, "%d aliases", aliases)
}

// TestQueue: every field of a Queue reaches the policy.
func TestQueue(t *testing.T) {
	c := connect("all")
	all := client.Queue{
		Description: "d", Namespace: "n", Ordering: "per_key", Lease: 100500 * time.Microsecond,
		MaxAttempts: 7, DeadLetterQueue: "auto",
		Backoff: time.Minute, BackoffMultiplier: 3, MaxBackoff: time.Hour, BackoffJitter: .5,
		BackoffSchedule: []time.Duration{0, time.Second}, OnRetry: "tail", OnDead: "hold_key",
		LaneBatch: 2, MaxInFlight: 9, RateLimit: 10, RatePer: time.Minute,
		PriorityAging: time.Second, DefaultDelay: time.Second,
		MaxAge: 1500 * time.Millisecond, DiscardExpired: true, MaxDepth: 11, MaxBytes: 12,
		DeduplicationWindow: time.Hour, DeduplicateContent: true, DeduplicateQueued: true,
		Schema: []byte(`{"type":"object"}`), Push: &client.Push{URL: "http://example.com/"},
	}
	v := reflect.ValueOf(all)
	for _, f := range reflect.VisibleFields(v.Type()) {
		// Only an unordered queue has max_in_flight_per_key.
		assert.True(t, !v.FieldByIndex(f.Index).IsZero() || f.Name == "MaxInFlightPerKey",
			"%s is not tried", f.Name)
	}
	require.NoError(t, c.EnsureQueue(t.Context(), "all", all))
	got, err := c.Queue(t.Context(), "all")
	require.NoError(t, err)
	d := got.Delivery
	assert.Equal(t, d.LeaseMS, 101, "rounded up")
	assert.Equal(t, got.Retention.MaxAgeSeconds, 2, "rounded up")
	require.NoError(t, c.EnsureQueue(t.Context(), "defaults", client.Queue{}))
	def, err := c.Queue(t.Context(), "defaults")
	require.NoError(t, err)
	differs := func(what string, a, b any) {
		x, y := reflect.ValueOf(a), reflect.ValueOf(b)
		for _, f := range reflect.VisibleFields(x.Type()) {
			assert.True(t, f.Name == "MaxInFlightPerKey" || !reflect.DeepEqual(
				x.FieldByIndex(f.Index).Interface(), y.FieldByIndex(f.Index).Interface()),
				"%s: %s has its default", what, f.Name)
		}
	}
	differs("delivery", d, def.Delivery)
	differs("retention", got.Retention, def.Retention)
	differs("deduplication", got.Deduplication, def.Deduplication)
	differs("policy", got.Policy, def.Policy)

	require.NoError(t, c.EnsureQueue(t.Context(), "all", client.Queue{
		MaxAttempts: -1, Backoff: -1, DeduplicationWindow: -1, MaxInFlightPerKey: 3}))
	got, err = c.Queue(t.Context(), "all")
	require.NoError(t, err)
	d = got.Delivery
	assert.Equal(t, d.MaxAttempts+d.InitialBackoffMS+got.Deduplication.WindowSeconds, 0, "none")
	assert.Equal(t, d.MaxInFlightPerKey, 3)
	assert.Equal(t, d.LeaseMS, def.Delivery.LeaseMS, "the default again")
}

// TestHooks: a hook sees what every call enqueues, and changes nothing of the caller's.
func TestHooks(t *testing.T) {
	connect("hooked").Close()
	refused := errors.New("refused")
	c, err := client.New(addr, client.WithEnqueueHook(
		func(_ context.Context, queue string, m *client.NewMessage) error {
			m.Headers["to"] = queue
			return nil
		}), client.WithEnqueueHook(
		func(_ context.Context, _ string, m *client.NewMessage) error {
			if m.Kind == "refused" {
				return refused
			}
			m.Headers["then"] = m.Headers["to"]
			return nil
		}))
	require.NoError(t, err)
	defer c.Close()
	ctx := t.Context()
	m := client.JSON(1)
	m.Headers = map[string]string{"own": "x"}
	bad := m
	bad.Kind = "refused"
	calls := map[string]func(m client.NewMessage) error{
		"Enqueue": func(m client.NewMessage) error { _, err := c.Enqueue(ctx, "hooked", m); return err },
		"Produce": func(m client.NewMessage) error { _, err := c.Produce(ctx, "hooked", m); return err },
		"Import": func(m client.NewMessage) error {
			_, err := c.Import(ctx, "hooked", []client.ImportMessage{{NewMessage: m, SourceID: "1"}})
			return err
		},
		"Transaction": func(m client.NewMessage) error {
			_, err := c.Transaction(ctx, client.TransactionRequest{Produce: []client.TransactionProduce{
				{Queue: "hooked", Messages: []client.NewMessage{m}}}})
			return err
		},
	}
	for name, call := range calls {
		assert.ErrorIs(t, call(bad), refused, "%s", name)
		require.NoError(t, call(m), "%s", name)
	}
	leased, err := c.Lease(ctx, "hooked", client.LeaseOptions{})
	require.NoError(t, err)
	require.Equal(t, len(leased), len(calls))
	_, err = c.AckAndProduce(ctx, "hooked", client.AckRequest{LeaseIDs: []string{leased[0].LeaseID},
		Produce: []client.TransactionProduce{{Queue: "hooked", Messages: []client.NewMessage{m}}}})
	require.NoError(t, err)
	seen := 0
	for is, err := range c.AllMessages(ctx, "hooked", client.MessageQuery{}) {
		require.NoError(t, err)
		assert.Equal(t, is.Headers["to"]+is.Headers["then"]+is.Headers["own"], "hookedhookedx")
		seen++
	}
	assert.Equal(t, seen, len(calls))
	assert.Equal(t, len(m.Headers), 1, "the caller's headers")
}
