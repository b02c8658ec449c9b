package deploy

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var update = flag.Bool("update", false, "render the chart into the files that the tests read")

const chart = "helm/qlogd"

// rendered are the files that hold the chart's output, with its arguments: the plain manifests,
// everything that is off by default, and a single node.
var rendered = map[string][]string{
	"kubernetes/qlogd.yaml": nil,
	"testdata/all.yaml":     {"--values", chart + "/ci/all-values.yaml"},
	"testdata/one.yaml":     {"--values", chart + "/ci/one-values.yaml"},
}

// tool returns the path of a program in PATH or in bin/, or skips the test.
func tool(t *testing.T, name, from string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs("../bin/" + name)
	require.NoError(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("there is no %s: %s", name, from)
	}
	return path
}

// output runs a program and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, out, &errs)
	}
	return string(out)
}

// header is the beginning of a rendered file: it names the chart's content.
func header(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(chart, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(sum, "%s %d\n%s", filepath.ToSlash(name), len(text), text)
		return err
	})
	require.NoError(t, err)
	return fmt.Sprintf("# Rendered by \"make manifests\" from deploy/%s: change it there.\n"+
		"# Content of the chart: %x\n", chart, sum.Sum(nil))
}

// TestRendered: the files with the chart's output are of the chart as it is, also where no helm can
// render it again.
func TestRendered(t *testing.T) {
	// Helm reads nothing outside of the chart.
	alerts, copied := read(t, "prometheus/alerts.yaml"), chart+"/files/alerts.yaml"
	if *update {
		require.NoError(t, os.WriteFile(copied, []byte(alerts), 0o644))
	}
	assert.True(t, read(t, copied) == alerts, "%s differs: make manifests", copied)
	for file, args := range rendered {
		t.Run(file, func(t *testing.T) {
			if *update {
				text := header(t) + render(t, args...)
				require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
			}
			require.True(t, strings.HasPrefix(read(t, file), header(t)),
				"%s is of another chart: make manifests", file)
		})
	}
}

// render returns what helm makes of the chart.
func render(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, tool(t, "helm", "make bin/helm builds it"),
		append([]string{"template", "qlogd", chart, "--namespace", "qlogd", "--kube-version", "1.34"},
			args...)...)
}

func TestHelm(t *testing.T) {
	helm := tool(t, "helm", "make bin/helm builds it")
	for file, args := range rendered {
		output(t, helm, append([]string{"lint", "--strict", chart}, args...)...)
		assert.True(t, read(t, file) == header(t)+render(t, args...),
			"%s is not what helm renders: make manifests", file)
	}
	for set, want := range map[string]string{
		"replicas=2":                     "replicas",
		"auth.secretName=":               "auth",
		"clusterSecret.secretName=":      "clusterSecret.secretName or raftTLS.secretName is required",
		"settings.node-id=x":             "node-id",
		"settings.history_retention=1h":  "history_retention",
		"podDisruptionBudget.enable=yes": "podDisruptionBudget",
	} {
		out, err := exec.Command(helm, "template", "qlogd", chart, "--kube-version", "1.34",
			"--set", set).CombinedOutput()
		assert.True(t, err != nil && strings.Contains(string(out), want),
			"--set %s: %v, want an error about %s\n%s", set, err, want, out)
	}
}

// TestKubeconform checks the manifests against the schemas of Kubernetes, from
// KUBERNETES_SCHEMAS (kubeconform's -schema-location).
func TestKubeconform(t *testing.T) {
	kubeconform := tool(t, "kubeconform", "make bin/kubeconform builds it")
	schemas := os.Getenv("KUBERNETES_SCHEMAS")
	if schemas == "" {
		t.Skip("KUBERNETES_SCHEMAS names no schemas, and the network is not for tests")
	}
	for file := range rendered {
		output(t, kubeconform, "-strict", "-schema-location", schemas,
			"-skip", "ServiceMonitor,PrometheusRule", file) // the operator's
	}
}

// TestKustomize: what kubectl apply -k sends.
func TestKustomize(t *testing.T) {
	out := output(t, tool(t, "kubectl", "it is Kubernetes' client"), "kustomize", "kubernetes")
	for _, want := range []string{"kind: Namespace", "kind: StatefulSet", "namespace: qlogd",
		"image: registry.example.com/qlogd:0.1.0"} {
		assert.Contains(t, out, want, "the manifests")
	}
}

// manifest has the fields of the chart's objects that must agree with each other.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		ClusterIP   string `yaml:"clusterIP"`
		NotReady    bool   `yaml:"publishNotReadyAddresses"`
		ServiceName string `yaml:"serviceName"`
		Replicas    int    `yaml:"replicas"`
		Selector    struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		Template struct {
			Metadata struct {
				Labels map[string]string `yaml:"labels"`
			} `yaml:"metadata"`
			Spec struct {
				Grace      int         `yaml:"terminationGracePeriodSeconds"`
				Containers []container `yaml:"containers"`
				Volumes    []struct {
					Name string `yaml:"name"`
				} `yaml:"volumes"`
			} `yaml:"spec"`
		} `yaml:"template"`
		VolumeClaims []struct {
			Metadata struct {
				Name string `yaml:"name"`
			} `yaml:"metadata"`
		} `yaml:"volumeClaimTemplates"`
		Groups   []map[string]any `yaml:"groups"`
		JobLabel string           `yaml:"jobLabel"`
	} `yaml:"spec"`
}

type container struct {
	Args []string `yaml:"args"`
	Env  []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	Ports []struct {
		Name string `yaml:"name"`
		Port int    `yaml:"containerPort"`
	} `yaml:"ports"`
	Mounts []struct {
		Name string `yaml:"name"`
		Path string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
	Ready struct {
		Get struct {
			Path   string `yaml:"path"`
			Port   string `yaml:"port"`
			Scheme string `yaml:"scheme"`
		} `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
}

// env returns the environment of a pod, by name.
func (c container) env(pod string) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = strings.ReplaceAll(e.Value, "$(POD_NAME)", pod)
	}
	return env
}

// find returns the only object of a kind with a name.
func find(t *testing.T, all []manifest, kind, name string) manifest {
	t.Helper()
	i := slices.IndexFunc(all, func(m manifest) bool {
		return m.Kind == kind && m.Metadata.Name == name
	})
	require.True(t, i >= 0, "there is no %s %s", kind, name)
	return all[i]
}

// TestManifests checks the rendered manifests against the program, and with each other.
func TestManifests(t *testing.T) {
	for file := range rendered {
		t.Run(file, func(t *testing.T) {
			all := documents[manifest](t, read(t, file))
			set := find(t, all, "StatefulSet", "qlogd")
			nodes := find(t, all, "Service", "qlogd-nodes")
			assert.Equal(t, nodes.Spec.ClusterIP, "None", "the nodes' service has an address")
			assert.True(t, nodes.Spec.NotReady, "the nodes' service lacks those that are not ready")
			assert.Equal(t, set.Spec.ServiceName, nodes.Metadata.Name, "the service of the set")
			assert.True(t, set.Spec.Template.Spec.Grace >= 15, "a node drains for up to 8 s")
			for k, v := range set.Spec.Selector.MatchLabels {
				assert.Equal(t, set.Spec.Template.Metadata.Labels[k], v, "label %s of a pod", k)
			}
			checkVolumes(t, set)
			for i := range set.Spec.Replicas {
				checkPod(t, set, fmt.Sprintf("qlogd-%d", i))
			}
		})
	}
}

// checkVolumes: what is mounted is there, and what is there is mounted.
func checkVolumes(t *testing.T, set manifest) {
	t.Helper()
	spec := set.Spec.Template.Spec
	volumes := map[string]bool{}
	for _, v := range set.Spec.VolumeClaims {
		volumes[v.Metadata.Name] = true
	}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range spec.Containers[0].Mounts {
		assert.True(t, volumes[m.Name], "%s is mounted at %s: no such volume", m.Name, m.Path)
		delete(volumes, m.Name)
	}
	delete(volumes, "cluster-secret") // the init container's
	assert.Equal(t, len(volumes), 0, "not mounted: %v", volumes)
}

// checkPod lets the program check a pod's settings.
func checkPod(t *testing.T, set manifest, pod string) {
	t.Helper()
	c := set.Spec.Template.Spec.Containers[0]
	env := c.env(pod)
	takes(t, pod, c.Args, env)
	at := pod + "." + set.Spec.ServiceName + ":7071"
	assert.Equal(t, env["QLOGD_NODE_ID"], pod, "its name")
	assert.Equal(t, env["QLOGD_RAFT_ADVERTISE"], at, "%s: its address", pod)
	if n := set.Spec.Replicas; n > 1 {
		join := strings.Split(env["QLOGD_JOIN"], ",")
		assert.True(t, slices.Contains(join, at) && len(join) == n, "%s joins %v", pod, join)
		assert.Equal(t, env["QLOGD_BOOTSTRAP_EXPECT"], fmt.Sprint(n), "%s expects", pod)
	}
	for name, file := range env {
		mounted := slices.ContainsFunc(c.Mounts, func(m struct {
			Name string `yaml:"name"`
			Path string `yaml:"mountPath"`
		}) bool {
			return file == m.Path || strings.HasPrefix(file, m.Path+"/")
		})
		assert.True(t, mounted || !strings.HasPrefix(file, "/"), "%s=%s is in no volume", name, file)
	}
	for _, p := range c.Ports {
		addr := env["QLOGD_"+strings.ToUpper(p.Name)+"_ADDR"]
		assert.Equal(t, port(addr), fmt.Sprint(p.Port), "port %s; the node listens at %s", p.Name, addr)
	}
	scheme := "HTTP"
	if env["QLOGD_TLS_CERT"] != "" {
		scheme = "HTTPS"
	}
	assert.Equal(t, c.Ready.Get.Scheme, scheme, "%s: scheme of the probe", pod)
}

// TestMonitoring: the operator finds the nodes once, as the job that the rules expect, and has the
// rules that promtool tests.
func TestMonitoring(t *testing.T) {
	all := documents[manifest](t, read(t, "testdata/all.yaml"))
	monitor := find(t, all, "ServiceMonitor", "qlogd")
	var selected []string
	for _, m := range all {
		matches := m.Kind == "Service"
		for k, v := range monitor.Spec.Selector.MatchLabels {
			matches = matches && m.Metadata.Labels[k] == v
		}
		if matches {
			selected = append(selected, m.Metadata.Name)
			assert.Equal(t, m.Metadata.Labels[monitor.Spec.JobLabel], "qlogd", "the job")
		}
	}
	assert.Equal(t, strings.Join(selected, " "), "qlogd-nodes", "services that are scraped")
	rules := find(t, all, "PrometheusRule", "qlogd")
	tested := documents[map[string][]map[string]any](t, read(t, "prometheus/alerts.yaml"))[0]
	assert.Equal(t, fmt.Sprint(rules.Spec.Groups), fmt.Sprint(tested["groups"]), "rules")
}

// TestPromtool checks configuration and rules of Prometheus, and runs the rules' tests.
func TestPromtool(t *testing.T) {
	promtool := tool(t, "promtool", "it comes with Prometheus")
	t.Chdir("prometheus")
	output(t, promtool, "check", "config", "prometheus.yaml")
	output(t, promtool, "check", "rules", "alerts.yaml")
	output(t, promtool, "test", "rules", "alerts.test.yaml")
}
