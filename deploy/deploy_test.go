// Package deploy holds the files in this folder against the program: what they
// set must exist, and what they say together must be taken.
package deploy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// Rules and dashboard use metrics that a node has, or that it has once it pushes or archives.
func TestMetricsExist(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	c := n.Client()
	_, _, err := c.PutQueue(t.Context(), "jobs", wire.PolicyUpdate{})
	require.NoError(t, err)
	_, text, err := c.Raw(t.Context(), http.MethodGet, "/metrics", nil, nil)
	require.NoError(t, err)
	known := string(text) + "# TYPE qlogd_push_breaker_open \n# TYPE qlogd_archive_failures_total "
	for _, file := range []string{
		"prometheus/alerts.yaml", "prometheus/alerts.test.yaml", "prometheus/grafana.json",
	} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile("qlogd_[a-z_]+").FindAllString(string(b), -1) {
			if !strings.Contains(known, "# TYPE "+strings.TrimSuffix(name, "_bucket")+" ") {
				t.Errorf("%s: a node has no metric %s", file, name)
			}
		}
	}
}

// help returns the flags that a command knows.
func help(t *testing.T, command ...string) map[string]bool {
	t.Helper()
	out, err := exec.Command(cluster.Binary(t), append(command, "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("qlogd %s --help: %v\n%s", strings.Join(command, " "), err, out)
	}
	flags := map[string]bool{}
	flag := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`)
	for _, m := range flag.FindAllStringSubmatch(string(out), -1) {
		flags[m[1]] = true
	}
	return flags
}

// takes lets the program check settings as serve would: flags and environment.
func takes(t *testing.T, what string, args []string, env map[string]string) {
	t.Helper()
	if len(args) == 0 || args[0] != "serve" {
		t.Errorf("%s runs %q, not serve", what, args)
		return
	}
	known := help(t, "serve")
	cmd := exec.Command(cluster.Binary(t), append([]string{"config", "check"}, args[1:]...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, v := range env {
		if flag, ours := strings.CutPrefix(name, "QLOGD_"); ours &&
			!known[strings.ToLower(strings.ReplaceAll(flag, "_", "-"))] {
			t.Errorf("%s sets %s, which is no setting", what, name)
		}
		cmd.Env = append(cmd.Env, name+"="+v)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: qlogd config check: %v\n%s", what, err, out)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// documents reads all of a YAML file into what out makes; a key that is there
// twice is an error.
func documents[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(text))
	for {
		var d T
		err := dec.Decode(&d)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, d)
	}
}

func port(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }

func TestYAMLParses(t *testing.T) {
	n := 0
	for _, pattern := range []string{"*.yaml", "*/*.yaml", "helm/qlogd/*.yaml",
		"helm/qlogd/ci/*.yaml", "../.goreleaser.yaml"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			t.Run(f, func(t *testing.T) {
				assert.NotEqual(t, len(documents[map[string]any](t, read(t, f))), 0,
					"nothing in it")
			})
			n++
		}
	}
	assert.True(t, n >= 8, "only %d files", n)
}

// dataDir returns where the image keeps its data.
func dataDir(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ENV QLOGD_DATA_DIR=(\S+)$`).FindStringSubmatch(read(t,
		"Dockerfile"))
	if m == nil {
		t.Fatal("the Dockerfile sets no data directory")
	}
	return m[1]
}

func TestDockerfile(t *testing.T) {
	text := read(t, "Dockerfile")
	dir := dataDir(t)
	for _, want := range []string{"USER 65532:65532", "VOLUME " + dir,
		`CMD ["/usr/bin/qlogd", "ready"]`} {
		assert.Contains(t, text, want, "it has no")
	}
	help(t, "ready")
	gomod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))
	assert.Contains(t, text, "FROM golang:"+gomod[1]+" ",
		"it builds with another Go than go.mod's %s", gomod[1])
	m := regexp.MustCompile(`(?m)^CMD (\[.*\])$`).FindStringSubmatch(text)
	takes(t, "CMD", documents[[]string](t, m[1])[0], map[string]string{"QLOGD_DATA_DIR": dir})
}

// TestComposeConfig lets docker read the file.
func TestComposeConfig(t *testing.T) {
	docker := tool(t, "docker", "it is Docker's client")
	if err := exec.Command(docker, "compose", "version").Run(); err != nil {
		t.Skip("docker has no compose plugin")
	}
	output(t, docker, "compose", "--file", "compose.yaml", "config", "--quiet")
}

func TestCompose(t *testing.T) {
	type service struct {
		Image       string            `yaml:"image"`
		Command     []string          `yaml:"command"`
		Environment map[string]string `yaml:"environment"`
		Ports       []string          `yaml:"ports"`
		Volumes     []string          `yaml:"volumes"`
		Restart     string            `yaml:"restart"`
		Grace       string            `yaml:"stop_grace_period"`
		Health      struct {
			Test []string `yaml:"test"`
		} `yaml:"healthcheck"`
	}
	c := documents[struct {
		Services map[string]service `yaml:"services"`
		Volumes  map[string]any     `yaml:"volumes"`
	}](t, read(t, "compose.yaml"))[0]
	nodes := map[string]service{}
	for name, s := range c.Services {
		if strings.HasPrefix(s.Image, "qlogd:") {
			nodes[name] = s
		}
	}
	require.Equal(t, len(nodes), 3, "nodes")
	published := map[string]bool{}
	for name, s := range nodes {
		takes(t, name, s.Command, s.Environment)
		env := s.Environment
		http, raft := port(env["QLOGD_HTTP_ADDR"]), port(env["QLOGD_RAFT_ADDR"])
		var join []string
		for other := range nodes {
			join = append(join, other+":"+raft)
		}
		slices.Sort(join)
		for _, k := range []struct{ what, got, want string }{
			{"node id", env["QLOGD_NODE_ID"], name},
			{"raft advertise", env["QLOGD_RAFT_ADVERTISE"], name + ":" + raft},
			{"http advertise", env["QLOGD_HTTP_ADVERTISE"], name + ":" + http},
			{"join", env["QLOGD_JOIN"], strings.Join(join, ",")},
			{"expect", env["QLOGD_BOOTSTRAP_EXPECT"], fmt.Sprint(len(nodes))},
			{"health", strings.Join(s.Health.Test, " "),
				"CMD /usr/bin/qlogd ready --addr http://127.0.0.1:" + http},
			{"volume", strings.Join(s.Volumes, " "), name + ":" + dataDir(t)},
			{"restart", s.Restart, "unless-stopped"},
		} {
			assert.Equal(t, k.got, k.want, "%s: %s", name, k.what)
		}
		if _, ok := c.Volumes[name]; !ok {
			t.Errorf("%s: no such volume", name)
		}
		if len(s.Ports) != 1 || !strings.HasPrefix(s.Ports[0], "127.0.0.1:") ||
			port(s.Ports[0]) != http || published[s.Ports[0]] {
			t.Errorf("%s: ports %q", name, s.Ports)
		}
		published[s.Ports[0]] = true
		if d, err := time.ParseDuration(s.Grace); err != nil || d < 15*time.Second {
			t.Errorf("%s: drains in %s, %v", name, s.Grace, err)
		}
		scraped := read(t, "prometheus/prometheus.yaml")
		assert.Contains(t, scraped, name+":"+http, "Prometheus scrapes no node %s", name)
	}
	for name, s := range c.Services {
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(from, "./") {
				_, err := os.Stat(from)
				assert.NoError(t, err, "%s mounts", name)
			}
		}
	}
}

// TestSecrets: the tokens of the example are of the form that the program takes.
func TestSecrets(t *testing.T) {
	secret := documents[struct {
		Data map[string]string `yaml:"stringData"`
	}](t, read(t, "kubernetes/secrets.example.yaml"))[0]
	file := filepath.Join(t.TempDir(), "auth.yaml")
	require.NoError(t, os.WriteFile(file, []byte(secret.Data["auth.yaml"]), 0o600))
	out, err := exec.Command(cluster.Binary(t), "token", "check", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1 token") {
		t.Errorf("qlogd token check: %v\n%s", err, out)
	}
}

func TestSystemd(t *testing.T) {
	unit := read(t, "systemd/qlogd.service")
	set := map[string]string{}
	for _, line := range strings.Split(unit, "\n") {
		if k, v, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			set[k] = v
		}
	}
	for k, want := range map[string]string{
		"Type": "notify", "NotifyAccess": "main", "ExecReload": "/bin/kill -HUP $MAINPID",
		"StateDirectory":  "qlogd",
		"TimeoutStartSec": "infinity", "TimeoutStopSec": "30", "LimitNOFILE": "65536",
		"RestartPreventExitStatus": "2 78",
		"ProtectSystem":            "strict", "NoNewPrivileges": "yes",
	} {
		assert.Equal(t, set[k], want, "%s", k)
	}
	if set["ExecStart"] != "/usr/bin/qlogd serve --config /etc/"+
		set["ConfigurationDirectory"]+"/qlogd.yaml" {
		t.Errorf("ExecStart=%s", set["ExecStart"])
	}
	for _, file := range []string{"systemd/qlogd.yaml", "systemd/cluster.yaml"} {
		takes(t, file, []string{"serve", "--config", file}, nil)
		settings := documents[map[string]any](t, read(t, file))[0]
		assert.Equal(t, settings["data-dir"], any("/var/lib/"+set["StateDirectory"]),
			"%s: data-dir", file)
	}
}

// TestFlagsInWords: every flag that the guide, the script and these files name
// is one.
func TestFlagsInWords(t *testing.T) {
	known := map[string]bool{}
	for _, command := range [][]string{
		{"serve"}, {"ready"}, {"replay"}, {"cluster", "add"}, {"cluster", "remove"},
		{"token", "new"}, {"lease"}, {"config", "check"}, {"tls", "dev"},
	} {
		for f := range help(t, command...) {
			known[f] = true
		}
	}
	for _, f := range []string{"build", "detach", "wait", "volumes", "from-file",
		"no-print-directory", "chown", "from", "interval", "timeout", "start-period", "retries",
		"now", "set", "storage"} {
		known[f] = true // of other programs
	}
	for _, name := range []string{"../docs/operations/cluster.md", "../scripts/cluster", "README.md",
		"compose.yaml", "systemd/qlogd.service", "systemd/qlogd.yaml", "systemd/cluster.yaml",
		"kubernetes/kustomization.yaml", "kubernetes/secrets.example.yaml",
		"kubernetes/qlogd.yaml", "Dockerfile"} {
		for i, line := range strings.Split(read(t, name), "\n") {
			flag := regexp.MustCompile(`(?:^|[\s"\x60(])--([a-z][a-z-]*)`)
			for _, m := range flag.FindAllStringSubmatch(line, -1) {
				assert.True(t, known[strings.TrimSuffix(m[1], "-")],
					"%s:%d: no flag is called --%s", name, i+1, m[1])
			}
		}
	}
}
