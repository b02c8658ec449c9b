package event

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew (the bytes are frozen: only for what is added)")

// codec is a format: how a value is written, and how it is read.
type codec[T any] struct {
	file   string // testdata/<file>.golden: in each line a name, and the bytes in hex
	encode func(*T) []byte
	decode func([]byte) (*T, error)
}

var (
	commandCodec = codec[Command]{"commands", EncodeCommand,
		func(b []byte) (*Command, error) { c := &Command{}; return c, c.Decode(b) }}
	resultCodec  = codec[Result]{"results", EncodeResult, DecodeResult}
	entryCodec   = codec[Entry]{"entries", (*Entry).Encode, DecodeEntry}
	policyCodec  = codec[Policy]{"policies", EncodePolicy, DecodePolicy}
	contentCodec = codec[Content]{"contents",
		func(c *Content) []byte { return EncodeContent(c).Bytes }, DecodeContent}
	headerCodec = codec[Event]{"headers", func(e *Event) []byte {
		return AppendHeader(nil, e)
	}, func(b []byte) (*Event, error) {
		e := &Event{}
		err := DecodeHeader(b, e)
		typ, queue, worker, ok := HeaderKind(b)
		if err == nil && ok && (typ != e.Type || string(queue) != e.Queue ||
			typ == Leased && string(worker) != e.Worker) {
			err = fmt.Errorf("kind %v, %q, %q", typ, queue, worker)
		}
		return e, err
	}}
	answersCodec = codec[[]Answer]{"answers",
		func(a *[]Answer) []byte { return EncodeAnswers(*a) },
		func(b []byte) (*[]Answer, error) {
			want := 0 // as many as are claimed, within reason
			if len(b) > 1 && b[1]&0xf0 == 0x90 {
				want = int(b[1] & 0x0f)
			}
			a, err := DecodeAnswers(b, want)
			return &a, err
		}}
)

// golden fails unless the values have the bytes in the file, and these are read as the values.
func (c codec[T]) golden(t *testing.T, values map[string]*T) {
	t.Helper()
	path := filepath.Join("testdata", c.file+".golden")
	if *update {
		var out bytes.Buffer
		for _, n := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&out, "%s %x\n", n, c.encode(values[n]))
		}
		must(t, os.WriteFile(path, out.Bytes(), 0o644))
	}
	was := readGolden(t, c.file)
	for n, v := range values {
		b := c.encode(v)
		if !bytes.Equal(b, was[n]) {
			t.Errorf("%s: %s is\n%x\nfrozen is\n%x", path, n, b, was[n])
		}
		delete(was, n)
		got, err := c.decode(b)
		must(t, err, "%s", n)
		same(t, n, got, v)
	}
	for n := range was {
		t.Errorf("%s: nothing makes %s any more", path, n)
	}
}

func readGolden(t testing.TB, file string) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file+".golden"))
	must(t, err)
	out := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		out[name], err = hex.DecodeString(digits)
		must(t, err)
	}
	return out
}

func hashOf(b byte) (h Hash) {
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

func idOf(n uint32) ID { return NewID(1_700_000_000_000, 42, n) }

func samplePolicy() Policy {
	return Policy{
		Ordering: PerKey, MaxAgeSeconds: 1, MaxDepth: 2, MaxBytes: 3, OnExpired: ExpiredDiscard, LeaseMS: 30_000, MaxAttempts: 5, InitialBackoffMS: 1000,
		BackoffMultiplier: 2 * Million, MaxBackoffMS: 60_000, BackoffJitter: Million / 10, BackoffScheduleMS: []int64{0, 1, 1000}, OnRetry: RetryTail,
		OnDead: DeadHoldKey, DeadLetterQueue: "dead", MaxInFlight: 7, MaxInFlightPerKey: 8, PriorityAgingMS: 9, RateLimit: 5, RatePerMS: 700, DefaultDelayMS: 1500, DedupWindowSeconds: 86_400, DedupBy: DedupByContent, DedupUntil: DedupUntilLeft, MessageSchema: []byte(`{"type":"object"}`), AssertFormat: true,
		Namespace: "team", Description: "for tests",
	}
}

func sampleContent() Content {
	return Content{
		Payload: []byte(`{"a":1}`), Binary: true, ContentType: "application/octet-stream", Headers: []Header{{"k", "v"}, {"empty", ""}},
		CorrelationID: "c-1", Error: "no such card", Result: []byte(`{"ok":true}`), Answer: []byte{1, 2, 3},
	}
}

func sampleProduce() Produce {
	c := sampleContent()
	return Produce{Queue: "q", Revision: 7, AutoCreate: true, Looked: 5, Messages: []NewMessage{
		{Priority: NormalPriority},
		{
			Key: "k", Kind: "red", Priority: 1, DelayMS: 100, DeliverAt: 1_700_000_000_001, TTLMS: 60_000, DedupKey: hashOf(1), PayloadHash: hashOf(2),
			Size: 7, Content: EncodeContent(&c), Seen: idOf(9), SeenUntil: 1_700_000_000_002, SeenAs: idOf(10),
		},
	}}
}

func sampleItems() []SettleItem {
	return []SettleItem{
		{Op: OpAck, Lease: idOf(1), Content: EncodeContent(&Content{Result: []byte(`1`)})},
		{Op: OpRetry, Lease: idOf(2), DelayMS: -1, Content: EncodeContent(&Content{Error: "e"})},
		{Op: OpDeadLetter, Lease: idOf(3)}, {Op: OpExtend, Lease: idOf(4), LeaseMS: 5000}, {Op: OpRelease, Lease: idOf(5)},
	}
}

func TestGoldenCommands(t *testing.T) {
	p, produce := samplePolicy(), sampleProduce()
	commands := map[string]*Command{
		"none":            {},
		"request":         {Actor: "someone", Request: &Request{Key: hashOf(1), Body: hashOf(2), Looked: 3}, PurgeQueue: &PurgeQueue{Name: "q"}},
		"put_queue":       {PutQueue: &PutQueue{Name: "q", Policy: p, IfRevision: 9, DeadLetterAuto: true}},
		"put_queue_plain": {PutQueue: &PutQueue{Name: "q", Policy: DefaultPolicy()}},
		"delete_queue":    {DeleteQueue: &DeleteQueue{Name: "q", Force: true}},
		"pause_queue":     {PauseQueue: &PauseQueue{Name: "q", Paused: true}},
		"resume_queue":    {PauseQueue: &PauseQueue{Name: "q"}},
		"purge_queue":     {PurgeQueue: &PurgeQueue{Name: "q"}},
		"produce":         {Produce: &produce},
		"lease":           {Lease: &Lease{Queues: []string{"a", "b"}, Max: 10, LeaseMS: 500, Worker: "w", Kinds: []string{"red"}}},
		"lease_single":    {Lease: &Lease{Queues: []string{"a"}, Max: 10, Single: true}},
		"settle":          {Settle: &Settle{Queue: "q", Items: sampleItems()}},
		"transaction":     {Transaction: &Transaction{Settle: sampleItems(), Produce: []Produce{produce, {Queue: "p"}}}},
		"delete":          {Delete: &DeleteMessage{ID: idOf(1)}},
		"reschedule":      {Reschedule: &Reschedule{ID: idOf(1), Priority: 1, DelayMS: -1, At: 1_700_000_000_001}},
		"carry":           {Carry: &Carry{Items: []CarryItem{{ID: idOf(1), From: Ref{42, 1}, Content: EncodeContent(&Content{Payload: []byte("1")})}}}},
		"retain":          {Retain: &Retain{Before: 42}},
		"mark":            {Mark: &Mark{}},
		"upgrade":         {Upgrade: &Upgrade{Rules: 2}},
		"upgrade_far":     {Upgrade: &Upgrade{Rules: 65_535}},
		"carry_labels": {Carry: &Carry{Items: []CarryItem{{
			ID: idOf(2), From: Ref{42, 1}, First: idOf(1), Replays: 3, CorrelationID: "c-1", DedupKey: hashOf(1), Lease: idOf(3), Worker: "w",
		}}}},
		"put_queue_push": {PutQueue: &PutQueue{Name: "q", Policy: Policy{Push: []byte(`{"url":"https://example.com"}`)}}},
		"replay": {Replay: &Replay{
			Queue: "q", To: "p", Order: OrderHead, MaxReplays: 3, Revision: 7, Strict: true, Task: idOf(1),
			Items: []ReplayItem{{ID: idOf(2)}, {ID: idOf(3), Edited: true, Size: 1, Content: EncodeContent(&Content{Payload: []byte("1")})}},
		}},
		"purge_dead": {PurgeDead: &PurgeDead{Queue: "q", Strict: true, Task: idOf(1), IDs: []ID{idOf(2), idOf(3)}}},
		"resurrect": {Resurrect: &Resurrect{To: "q", Order: OrderOriginal, Revision: 7, Looked: 41, Strict: true, Task: idOf(7), Items: []ResurrectItem{
			{
				ID: idOf(1), Last: Ref{42, 1}, First: idOf(0), Replays: 2, Key: "k", Kind: "red", SourceID: "s", Alias: hashOf(1), Holder: idOf(2), Priority: 5,
				Size: 1, Edited: true, Content: EncodeContent(&Content{Payload: []byte("1")}),
			},
			{ID: idOf(3), Skip: SkipErased},
		}}},
		"create_task": {CreateTask: &CreateTask{Kind: TaskReplay, Queue: "q", Total: 10_000, Content: EncodeContent(&Content{Spec: []byte(`{"filter":{}}`)})}},
		"verify_node": {CreateTask: &CreateTask{Kind: TaskVerify, Node: "n1/x"}},
		"update_task": {UpdateTask: &UpdateTask{ID: idOf(1), Op: TaskOpFail, Node: "n1", Skipped: 3, Content: EncodeContent(&Content{Error: "e"})}},
		"erase": {Erase: &Erase{
			Task: idOf(1), Items: []EraseItem{{ID: idOf(2), Last: Ref{42, 3}, Refs: []Ref{{42, 2}, {42, 3}}}}, Why: EncodeContent(&Content{Why: "asked to"}),
		}},
		"put_webhook":    {PutWebhook: &PutWebhook{Name: "w", Queue: "q", Definition: []byte(`{}`)}},
		"delete_webhook": {DeleteWebhook: &DeleteWebhook{Name: "w"}},
		"define":         {Define: &Define{Queues: []PutQueue{{Name: "q", Policy: p}}, Webhooks: []PutWebhook{{Name: "w", Queue: "q", Definition: []byte(`{}`)}}}},
		"import":         {Produce: &Produce{Queue: "q", Import: true, Messages: []NewMessage{{Priority: 5, SourceID: "s-1", DedupKey: hashOf(3)}}}},
	}
	commandCodec.golden(t, commands)
}

func TestGoldenHeaders(t *testing.T) {
	p := samplePolicy()
	headers := map[string]*Event{
		"queue_created": {Type: QueueCreated, Queue: "q", Actor: "someone", Policy: &p, Number: 3},
		"queue_updated": {Type: QueueUpdated, Queue: "q", Policy: &p}, "queue_deleted": {Type: QueueDeleted, Queue: "q", Count: 12},
		"queue_paused": {Type: QueuePaused, Queue: "q"}, "queue_resumed": {Type: QueueResumed, Queue: "q"},
		"queue_purged":    {Type: QueuePurged, Queue: "q", Count: 1000},
		"enqueued":        {Type: Enqueued, Queue: "q", Key: "k", Kind: "red", Priority: 5, Due: 1_700_000_000_001, Expires: 1_700_000_000_002, Size: 70, Until: 1_700_000_000_003, SourceID: "s"},
		"leased":          {Type: Leased, Queue: "q", Lease: idOf(1), LeaseExpires: 1_700_000_000_001, Attempt: 1, Worker: "w"},
		"lease_extended":  {Type: LeaseExtended, Queue: "q", Lease: idOf(1), LeaseExpires: 1_700_000_000_001, Attempt: 1},
		"lease_expired":   {Type: LeaseExpired, Queue: "q", Lease: idOf(1), Attempt: 2, Due: 1_700_000_000_001, Place: PlaceBlock},
		"acked":           {Type: Acked, Queue: "q", Lease: idOf(1), Attempt: 2},
		"retried":         {Type: Retried, Queue: "q", Lease: idOf(1), Attempt: 2, Due: 1_700_000_000_001, Place: PlaceTail},
		"released":        {Type: Released, Queue: "q", Lease: idOf(1), Place: PlaceHead},
		"dead_lettered":   {Type: DeadLettered, Queue: "q", Lease: idOf(1), Attempt: 5, Reason: ReasonMaxAttempts, ToQueue: "dead", HoldsKey: true, TakesKey: true},
		"discarded":       {Type: Discarded, Queue: "q", Reason: ReasonQueueDeleted},
		"replayed":        {Type: Replayed, Queue: "dead", ToQueue: "q", Task: idOf(7)},
		"answer_kept":     {Type: AnswerKept, Body: hashOf(4), Until: 1_700_000_000_001},
		"content_carried": {Type: ContentCarried, Queue: "q"}, "history_deleted": {Type: HistoryDeleted, Before: 1 << 40},
		"content_carried_labels": {
			Type: ContentCarried, Queue: "q", Key: "k", Kind: "red", Priority: 5, Size: 7, SourceID: "s", Worker: "w", First: idOf(1), Count: 3, CorrelationID: "c-1", DedupKey: hashOf(1),
		},
		"rules_changed": {Type: RulesChanged, Rules: 2},
		"queue_push":    {Type: QueueUpdated, Queue: "q", Policy: &Policy{Push: []byte(`{"url":"https://example.com"}`)}},
		"replayed_edited": {
			Type: Replayed, Queue: "dead", ToQueue: "q", DiedIn: "q", Order: OrderOriginal, Edited: true, Size: 9, Task: idOf(7),
		},
		"resurrected":       {Type: Resurrected, Queue: "q", ToQueue: "p", Key: "k", Kind: "red", Priority: 5, Size: 7, Edited: true},
		"resurrected_first": {Type: Resurrected, Queue: "q", ToQueue: "q", Priority: 5, Size: 7, First: idOf(3), Count: 2},
		"resurrected_task":  {Type: Resurrected, Queue: "q", ToQueue: "q", Priority: 5, Size: 7, SourceID: "s", Until: 9, Order: OrderOriginal, Task: idOf(4)},
		"task_created":      {Type: TaskCreated, Queue: "q", Task: idOf(7), TaskKind: TaskErase, Count: 12},
		"verify_created":    {Type: TaskCreated, Task: idOf(7), TaskKind: TaskVerify, Node: "n1/x"},
		"task_cancelled":    {Type: TaskCancelled, Task: idOf(7)},
		"task_resumed":      {Type: TaskResumed, Task: idOf(7)},
		"task_sealed":       {Type: TaskSealed, Task: idOf(7)},
		"task_reported":     {Type: TaskReported, Task: idOf(7), Node: "n1"},
		"task_ended":        {Type: TaskEnded, Task: idOf(7), Failed: true, Count: 3},
		"erased":            {Type: Erased, Queue: "q", Task: idOf(7), Refs: []Ref{{42, 0}, {42, 200}}},
		"webhook_created":   {Type: WebhookCreated, Webhook: "w", Queue: "q", Definition: []byte(`{"a":1}`)},
		"webhook_updated":   {Type: WebhookUpdated, Webhook: "w", Definition: []byte(`{}`)},
		"webhook_deleted":   {Type: WebhookDeleted, Webhook: "w"},
		"rescheduled":       {Type: Rescheduled, Queue: "q", Priority: 1, Due: 1_700_000_000_001, Attempt: 1},
		"returned":          {Type: Returned, Queue: "q", Lease: idOf(1), Attempt: 1, Place: PlaceBlock},
	}
	headerCodec.golden(t, headers)
	for _, n := range typeNames[1:] {
		if headers[n] == nil {
			t.Errorf("no golden bytes for %s", n)
		}
	}
	for n, e := range headers {
		_, _, _, ok := HeaderKind(AppendHeader(nil, e))
		assert.True(t, ok, "%s has no kind", n)
	}
}

func TestGoldenContents(t *testing.T) {
	c := sampleContent()
	contents := map[string]*Content{"all": &c, "payload": {Payload: []byte(`{"a":1}`)}, "error": {Error: "no such card"}, "nothing": {},
		"spec": {Spec: []byte(`{"a":1}`)}, "original": {Payload: []byte(`1`), Original: []byte(`{"a":1}`)}, "why": {Why: "asked to"}}
	contentCodec.golden(t, contents)
	if got := EncodeContent(&c).Digest; !bytes.Equal(got[:], readGolden(t, "digest")["all"]) {
		t.Errorf("the digest is %x", got)
	}
}

func TestGoldenResults(t *testing.T) {
	results := map[string]*Result{
		"created": {Index: 42, Created: true}, "purged": {Index: 42, Count: 1000},
		"moved":    {Index: 42, Moved: []Moved{{ID: idOf(1), To: idOf(2)}, {ID: idOf(3), Code: SkipLeased}}},
		"task":     {Index: 42, ID: idOf(1)},
		"produced": {Index: 42, Produced: []Produced{{ID: idOf(1)}, {ID: idOf(2), Duplicate: true}}},
		"settled": {Index: 42, Settled: []Settled{
			{Lease: idOf(1), Status: StatusAcked, Message: idOf(3), Queue: "q"}, {Lease: idOf(2), Status: StatusRejected, Code: CodeLeaseLost},
			{Lease: idOf(4), Status: StatusRetried, NextAt: 1_700_000_000_001}, {Lease: idOf(5), Status: StatusExtended, ExpiresAt: 1_700_000_000_001},
		}},
	}
	resultCodec.golden(t, results)
}

func TestGoldenEntries(t *testing.T) {
	entries := map[string]*Entry{
		"tick":     {Rules: 1, Time: 1_700_000_000_000},
		"commands": {Rules: 1, Time: 1_700_000_000_000, Commands: [][]byte{EncodeCommand(&Command{PurgeQueue: &PurgeQueue{Name: "q"}}), {}, {1}}},
		"other":    {Rules: 65_535, Time: -1},
		"upgrade":  {Rules: 2, Time: 1_700_000_000_000, Commands: [][]byte{EncodeCommand(&Command{Upgrade: &Upgrade{Rules: 2}})}},
	}
	entryCodec.golden(t, entries)
}

func TestGoldenPolicies(t *testing.T) {
	all, plain := samplePolicy(), DefaultPolicy()
	policies := map[string]*Policy{"all": &all, "default": &plain, "lanes": {Ordering: FIFO, LaneBatch: 100}}
	policyCodec.golden(t, policies)
}

// must fails the test on an error.
var must = require.NoError
