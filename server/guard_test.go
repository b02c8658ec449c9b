package server

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/peer"
)

// TestEveryListenerIsGuarded sends every listener what a browser sends for a page of another
// origin, and for one that uses DNS rebinding. A listener has a setting ending in Addr, so one
// that is added is tried too; internal/arch checks that nothing serves beside api.HTTPServer. Only the
// nodes' own port is left out: who connects there must begin with a hello.
func TestEveryListenerIsGuarded(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	dir := t.TempDir()
	cert, key, tokens := filepath.Join(dir, "c"), filepath.Join(dir, "k"), filepath.Join(dir, "a")
	pair := secure.TLS.Certificates[0]
	for file, text := range map[string][]byte{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
			Bytes: must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))}),
		tokens: []byte("- name: shop\n  sha256: " + strings.Repeat("0", 64) + "\n  roles: [admin]\n"),
	} {
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
	for _, c := range []struct {
		name  string
		set   with
		first int // the first listener that checks the Host: with tokens the API does not
	}{
		{"alone", func(*Config) {}, 0},
		{"TLS and tokens", func(c *Config) { c.TLSCert, c.TLSKey, c.AuthFile = cert, key, tokens }, 1},
		{"no cluster yet", func(c *Config) {
			c.BootstrapExpect, c.Join = 2, []string{ports.Free(t)}
		}, 0},
	} {
		var addrs []string
		n := startTest(t, "", c.set, func(c *Config) {
			c.HTTPAddr = ports.Free(t)
			addrs = []string{c.HTTPAddr}
			settings := reflect.ValueOf(c).Elem()
			for _, f := range reflect.VisibleFields(settings.Type()) {
				if strings.HasSuffix(f.Name, "Addr") && f.Name != "RaftAddr" && f.Name != "HTTPAddr" {
					addrs = append(addrs, ports.Free(t))
					settings.FieldByIndex(f.Index).SetString(addrs[len(addrs)-1])
				}
			}
		})
		require.True(t, len(addrs) >= 2, "listeners: %v", addrs)
		for i, addr := range addrs {
			url := "http://" + addr
			if i == 0 && n.certs != nil {
				url = "https://" + addr
			}
			for _, r := range []struct{ method, header, code string }{
				{"POST", "Sec-Fetch-Site: cross-site", "cross_origin"},
				{"POST", "Sec-Fetch-Site: same-site", "cross_origin"},
				{"POST", "Origin: https://evil.example.com", "cross_origin"},
				{"POST", "Origin: null", "cross_origin"},
				{"GET", "Sec-Fetch-Site: cross-site", "cross_origin"},
				{"OPTIONS", "Origin: https://evil.example.com", "cross_origin"},
				{"GET", "Host: evil.example.com:7070", "misdirected_request"},
				{"POST", "Host: evil.example.com", "misdirected_request"},
			} {
				host := r.code == "misdirected_request"
				code, out := send(t, secure.Client(), r.method, url+"/debug/pprof/", "", r.header)
				if host && i < c.first {
					assert.NotEqual(t, code, r.code, "%s: %s with a token", c.name, r.header)
					continue
				}
				assert.Equal(t, code, r.code, "%s: %s %s %s", c.name, url, r.method, r.header)
				assert.NotEqual(t, out.Get("X-Request-Id"), "", "%s: X-Request-Id", c.name)
				assert.Equal(t, out.Get("Access-Control-Allow-Origin"), "", "%s", c.name)
			}
		}
		n.stop()
	}
}

// The names in the settings are the node's own, and no others. Pages that are refused are counted.
func TestOwnNames(t *testing.T) {
	t.Parallel()
	n := startTest(t, "", func(c *Config) {
		c.PublicURL = []string{"https://ops.example.com/qlogd/"}
		c.AllowHost = []string{"q.example.com", "v6.example.com"}
		c.HTTPAdvertise, c.RaftAdvertise = "a.example.com:1", "r.example.com:1"
	})
	defer n.stop()
	n.put("jobs", `{}`)
	for _, page := range []string{"Origin: http://evil.example.com", "Host: evil.example.com"} {
		code, _ := send(t, http.DefaultClient, "POST", n.addr+"/v1/queues/jobs/pause", "", page)
		assert.True(t, code == "cross_origin" || code == "misdirected_request", "%s: %s", page, code)
	}
	assert.False(t, must(n.Queue(t.Context(), "jobs")).Paused, "paused")
	for _, ours := range []string{"Origin: https://ops.example.com", "Host: OPS.example.com",
		"Host: q.example.com:99", "Host: v6.example.com", "Host: a.example.com",
		"Host: r.example.com", "Sec-Fetch-Site: same-origin"} {
		code, _ := send(t, http.DefaultClient, "POST", n.addr+"/v1/queues/jobs/resume", "", ours)
		assert.Equal(t, code, "", "%s", ours)
	}
	_, b, err := n.Raw(t.Context(), "GET", "/metrics", nil, nil)
	require.NoError(t, err)
	for _, want := range []string{`status="403"} 1`, `status="421"} 1`} {
		assert.Contains(t, string(b), `qlogd_http_requests_total{method="",route="other",`+want)
	}
}

// send sends a request with headers "Name: value", and returns the answer's code, "" if it is no
// problem, and headers.
func send(
	t *testing.T, c *http.Client, method, url, body string, headers ...string,
) (code string, answer http.Header) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))
	for _, h := range headers {
		name, v, _ := strings.Cut(h, ": ")
		r.Header.Set(name, v)
	}
	r.Host = r.Header.Get("Host")
	res := must(c.Do(r))
	defer res.Body.Close()
	b := must(io.ReadAll(res.Body))
	var p wire.Problem
	if res.Header.Get("Content-Type") == "application/problem+json" {
		require.NoError(t, wire.Unmarshal(b, &p))
		assert.Equal(t, p.Status, res.StatusCode)
	}
	return p.Code, res.Header
}

// A node that is alone, with tokens or without, admits nobody who only knows its port.
func TestStrangersAreNotAdmitted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	tokens := file("tokens", "- name: shop\n  sha256: "+strings.Repeat("0", 64)+"\n  roles: [admin]\n")
	secret := file("secret", "sixteen bytes, or more\n")
	free := startTest(t, "", func(c *Config) { c.NodeID = "free" })
	defer free.stop()
	stranger := startTest(t, "", func(c *Config) {
		c.NodeID, c.Join = "stranger", []string{free.peers.Self().Raft}
	})
	defer stranger.stop()
	for what, guard := range map[string]string{
		"needs Raft TLS":               "",
		"the connecting node has none": secret,
	} {
		n := startTest(t, "", func(c *Config) {
			c.NodeID, c.AuthFile, c.ClusterSecretFile = "n1", tokens, guard
		})
		_, _, err := stranger.peers.Call(t.Context(), peer.Target{Addr: n.peers.Addr()}, "ping", nil)
		assert.True(t, err != nil && strings.Contains(err.Error(), what), "%s: %v", what, err)
		err = n.engine().replica.AddMember(t.Context(), raft.Member{ID: "x", RaftAddr: "127.0.0.1:1"})
		assert.Equal(t, err != nil, guard == "", "announced at one that accepts nobody: %v", err)
		n.Reload(func(setting string, err error) { assert.NoError(t, err, "%s", setting) })
		n.stop()
	}
	ready := func(want bool, why string) {
		t.Helper()
		cluster.Until(t, func() error {
			e := stranger.engine()
			if e == nil {
				return errors.New("it looks for the cluster")
			}
			is, whyNot := e.replica.Ready()
			if is != want || !strings.Contains(strings.Join(whyNot, ";"), why) {
				return fmt.Errorf("ready: %v, %v", is, whyNot)
			}
			return nil
		})
	}
	ready(false, "node stranger is not announced at "+stranger.peers.Self().Raft)
	_, _, err := free.AddNode(t.Context(), wire.NewNode{ID: "stranger",
		RaftAddr: stranger.peers.Self().Raft})
	require.NoError(t, err)
	ready(true, "")
}
