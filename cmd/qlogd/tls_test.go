package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// secured is a cluster of three that uses TLS on both ports.
type secured struct {
	t    *testing.T
	bin  string
	addr []string // of the API, with scheme
}

// startSecured starts nodes with the flags that tls dev prints for dir, and returns once they are
// ready.
func startSecured(t *testing.T, dir string) *secured {
	t.Helper()
	s := &secured{t: t, bin: cluster.Binary(t)}
	var join []string
	for range 3 {
		join = append(join, ports.Free(t))
	}
	data := t.TempDir()
	for i, raft := range join {
		http, name := ports.Free(t), string(rune('a'+i))
		s.addr = append(s.addr, "https://"+http)
		cmd := exec.Command(s.bin, "serve", "--node-id", name,
			"--data-dir", filepath.Join(data, name), "--http-addr", http, "--raft-addr", raft,
			"--bootstrap-expect", "3", "--join", strings.Join(join, ","),
			"--tls-cert", dir+"/api.crt", "--tls-key", dir+"/api.key", "--raft-tls-cert",
			dir+"/node.crt", "--raft-tls-key", dir+"/node.key", "--raft-tls-ca", dir+"/ca.crt")
		log, err := os.Create(filepath.Join(data, name+".log"))
		require.NoError(t, err)
		cmd.Stderr = log
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				text, _ := os.ReadFile(log.Name())
				t.Logf("%s:\n%s", name, text)
			}
			log.Close()
		})
	}
	s.run(0, "", "ready", "--wait", "60s", "--addr", strings.Join(s.addr, ","),
		"--ca-cert", dir+"/ca.crt")
	return s
}

// run runs a client command, wants an exit code, and returns all that it prints.
func (s *secured) run(exit int, stdin string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(s.bin, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != exit {
		s.t.Fatalf("qlogd %s: %v, want exit code %d\n%s", strings.Join(args, " "), err, exit, out)
	}
	return string(out)
}

// TestTLSDev: a cluster forms with the certificates, serves those who trust their authority alone,
// and takes over renewed ones while it runs.
func TestTLSDev(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	out, err := exec.Command(cluster.Binary(t), "tls", "dev", dir).CombinedOutput()
	require.NoError(t, err)
	s := startSecured(t, dir)
	assert.Contains(t, string(out), "--raft-tls-ca "+dir+"/ca.crt", "the flags for a node")

	s.run(0, "", "queue", "create", "jobs", "--addr", s.addr[0], "--ca-cert", dir+"/ca.crt")
	s.run(0, `{"n":1}`, "enqueue", "jobs", "--addr", s.addr[1], "--ca-cert", dir+"/ca.crt")
	got := s.run(0, "", "lease", "jobs", "--ack", "--addr", s.addr[2], "--ca-cert", dir+"/ca.crt")
	assert.Contains(t, got, `{"n":1}`, "what the third node delivers")
	got = s.run(1, "", "queue", "list", "--addr", s.addr[0])
	assert.Contains(t, got, "authority", "the error of a client that does not trust it")

	before, err := os.ReadFile(dir + "/ca.crt")
	require.NoError(t, err)
	assert.Contains(t, s.run(1, "", "tls", "dev", dir), "ca.crt exists; --force replaces it",
		"a second run")
	after, err := os.ReadFile(dir + "/ca.crt")
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after), "a refused run replaced the authority")

	old := filepath.Join(t.TempDir(), "old.crt")
	require.NoError(t, os.WriteFile(old, before, 0o600))
	s.run(0, "", "tls", "dev", dir, "--force")
	s.run(0, "", "ready", "--wait", "60s", "--addr", strings.Join(s.addr, ","),
		"--ca-cert", dir+"/ca.crt")
	s.run(1, "", "queue", "list", "--addr", s.addr[0], "--ca-cert", old)
}
