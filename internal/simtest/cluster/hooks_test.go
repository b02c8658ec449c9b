package cluster_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

const hookSecret = "topsecret-0123456789-nobody-may-see-this"

// delivery is one of GitHub's bodies.
type delivery struct {
	event string
	body  []byte
}

// deliveries are the bodies in testdata.
func deliveries(t testing.TB) []delivery {
	t.Helper()
	f, err := os.Open("../../../testdata/github-webhooks.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []delivery
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 16<<20)
	for {
		if !sc.Scan() {
			if sc.Err() != nil || len(out) != 339 {
				t.Fatal(len(out), sc.Err())
			}
			return out
		}
		var line struct {
			Event   string         `json:"event"`
			Payload jsontext.Value `json:"payload"`
		}
		if err := wire.Unmarshal(sc.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		out = append(out, delivery{line.Event, line.Payload})
	}
}

// githubSender posts webhooks as GitHub does.
type githubSender struct{ http *http.Client }

func newSender() *githubSender {
	return &githubSender{&http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// send posts a webhook once.
func (g *githubSender) send(ctx context.Context, n *cluster.Node, hook, id string, d delivery) (int, http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.HTTPAddr()+"/hook/"+hook, bytes.NewReader(d.body))
	if err != nil {
		return 0, nil, nil, err
	}
	m := hmac.New(sha256.New, []byte(hookSecret))
	m.Write(d.body)
	for name, v := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "GitHub-Hookshot/044aadd", "X-GitHub-Event": d.event, "X-GitHub-Delivery": id,
		"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(m.Sum(nil)), "Authorization": "Bearer " + hookSecret,
	} {
		req.Header.Set(name, v)
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, b, err
}

// putHook makes a queue and a webhook into it.
func putHook(t *testing.T, cl *client.Client, queue string, policy wire.PolicyUpdate, change func(*wire.WebhookDefinition)) {
	t.Helper()
	if _, _, err := cl.PutQueue(t.Context(), queue, policy); err != nil {
		t.Fatal(err)
	}
	d := wire.WebhookDefinition{
		Queue: queue, VerifyHMAC: &wire.VerifyHMAC{Scheme: "github", SecretEnv: wire.Strings{"HOOK_SECRET"}},
		IdempotencyKey: "headers['x-github-delivery']", Kind: "headers['x-github-event']",
	}
	if change != nil {
		change(&d)
	}
	if _, _, err := cl.PutWebhook(t.Context(), queue, d); err != nil {
		t.Fatal(err)
	}
}

// TestSecretsStayWhereTheyAre: one node of three lacks a secret and says so; and
// no file of any node, nor what it logs or answers, has one.
func TestSecretsStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: []string{"--log-level", "debug"}, PerNode: func(i int, o *cluster.Options) {
		if i != 2 {
			o.Env = append(o.Env, "HOOK_SECRET="+hookSecret)
		}
	}})
	cl := c.Client()
	putHook(t, cl, "hooks", wire.PolicyUpdate{}, func(d *wire.WebhookDefinition) {
		d.MapTo = &wire.MapTo{Input: map[string]string{"all": "headers"}}
	})
	body := delivery{"ping", []byte(`{"zen":"Anything added dilutes everything else."}`)}
	g := newSender()
	var told bytes.Buffer
	for i := range 3 {
		status, header, b, err := g.send(t.Context(), c.Node(i), "hooks", fmt.Sprint("d", i), body)
		if err != nil {
			t.Fatal(err)
		}
		_ = header.Write(&told)
		told.Write(b)
		if want := map[bool]int{true: 503, false: 202}[i == 2]; status != want {
			t.Errorf("%s: %d %s", c.Node(i).Name(), status, b)
		}
		ready, answer, err := c.Node(i).Do(t.Context(), http.MethodGet, "/readyz", nil)
		if err != nil || ready != 200 || bytes.Contains(answer, []byte("secret_missing: webhook hooks: environment variable HOOK_SECRET is not set")) != (i == 2) {
			t.Errorf("%s: %d %s %v", c.Node(i).Name(), ready, answer, err)
		}
		told.Write(answer)
		bad := delivery{"ping", []byte("{}")}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.Node(i).URL()+"/hook/hooks", bytes.NewReader(bad.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Hub-Signature-256", "sha256=00")
		resp, err := g.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(&told, resp.Body)
		_ = resp.Body.Close()
	}
	for _, path := range []string{"/v1/events?from=start", "/v1/webhooks", "/v1/queues/hooks/messages", "/metrics"} {
		status, b, err := c.Node(0).Do(t.Context(), http.MethodGet, path, nil)
		if err != nil || status != 200 {
			t.Fatalf("%s: %d %v", path, status, err)
		}
		told.Write(b)
	}
	if !bytes.Contains(told.Bytes(), []byte("X-GitHub-Delivery")) && !bytes.Contains(told.Bytes(), []byte("x-github-delivery")) {
		t.Error("the messages were not looked at")
	}
	if bytes.Contains(told.Bytes(), []byte(hookSecret)) {
		t.Errorf("an answer has the secret: %s", told.Bytes())
	}
	c.TermAll()
	files := 0
	for _, n := range c.Nodes() {
		if strings.Contains(n.Log(), hookSecret) {
			t.Errorf("%s logs the secret", n.Name())
		}
		err := filepath.WalkDir(n.Dir(), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files++
			if bytes.Contains(b, []byte(hookSecret)) {
				t.Errorf("%s has the secret", name)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 15 {
		t.Errorf("only %d files were looked at", files)
	}
}
