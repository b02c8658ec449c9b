package cluster_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// delivery is one of GitHub's bodies.
type delivery struct {
	event string
	body  []byte
}

// deliveries are the bodies in testdata.
func deliveries(t testing.TB) []delivery {
	t.Helper()
	f, err := os.Open("../../../testdata/github-webhooks.jsonl.gz")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
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
		require.NoError(t, wire.Unmarshal(sc.Bytes(), &line))
		out = append(out, delivery{line.Event, line.Payload})
	}
}

// hookAnswer is what /hook answers.
type hookAnswer struct {
	Queued, Duplicate, Filtered bool
	MessageID                   string `json:"message_id"`
	State                       string
	Key                         string `json:"idempotency_key"`
	Code                        string
	status                      int
}

// hookSender posts signed webhooks.
type hookSender struct{ header, prefix, secret string }

// send posts a webhook once.
func (s hookSender) send(ctx context.Context, n *cluster.Node, hook string, body []byte,
	headers ...string) (a hookAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m := hmac.New(sha256.New, []byte(s.secret))
	m.Write(body)
	h := http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + s.secret}}
	h.Set(s.header, s.prefix+hex.EncodeToString(m.Sum(nil)))
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	resp, b, err := n.Client().Raw(ctx, http.MethodPost, "/hook/"+hook, h, body)
	if err != nil {
		return a, err
	}
	a.status = resp.StatusCode
	return a, json.Unmarshal(b, &a)
}

// nowhereBut checks that neither answers, logs nor files have a secret, where the
// files have another text. It stops the nodes.
func nowhereBut(t *testing.T, c *cluster.Cluster, secret, there string) {
	t.Helper()
	for _, path := range []string{
		"/v1/events?from=start", "/v1/webhooks", "/v1/queues/hooks/messages", "/metrics", "/readyz",
	} {
		status, b, err := c.Node(0).Get(t.Context(), path)
		assert.True(t, err == nil && status == http.StatusOK && !bytes.Contains(b, []byte(secret)),
			"%s: %d %v, or it has the secret", path, status, err)
	}
	c.TermAll()
	for _, n := range c.Nodes() {
		assert.False(t, strings.Contains(n.Log(), secret), "%s logs the secret", n.Name())
		found := filesWith(t, n.Dir(), map[string]string{"secret": secret, "there": there})
		if len(found["secret"]) > 0 || len(found["there"]) == 0 {
			t.Errorf("%s: %v", n.Name(), found)
		}
	}
}

// filesWith returns in which files of a folder each of some texts is.
func filesWith(t *testing.T, dir string, texts map[string]string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		b, err := written(path)
		if err != nil {
			return ignoreGone(err)
		}
		rel, _ := filepath.Rel(dir, path)
		for what, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found[what] = append(found[what], rel)
			}
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

// written returns a file's bytes without stretches of zeros: Raft's files are 64 MiB of them.
func written(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []byte
	chunk, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := f.Read(chunk)
		if !bytes.Equal(chunk[:n], zeros[:n]) {
			out = append(out, chunk[:n]...)
		}
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// ignoreGone drops the error of a file that a live node has deleted.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
