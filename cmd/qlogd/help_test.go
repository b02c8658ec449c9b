package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// The help describes nothing that is not there. What it lacks is a panic at the start.
func TestHelpDescribesOnlyWhatThereIs(t *testing.T) {
	described := map[string]bool{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "qlogd ")
		described[name] = true
		for flag := range cmd.Annotations {
			shared := strings.Contains(sections()[name], "\n  those of ")
			if cmd.Flags().Lookup(flag) == nil && !shared {
				t.Errorf("%s has no --%s", name, flag)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).rootCmd())
	for name := range sections() {
		if !described[name] && name != "flags" {
			t.Errorf("there is no command %s", name)
		}
	}
}

// need prepares what examples need.
type need struct {
	of string // a regular expression: these examples
	do func(r *reader)
}

func sh(commands string) func(*reader) { return func(r *reader) { r.must(commands) } }

// needs prepare an example. Those of all that fit run before it, in this order.
var needs = []need{
	{`qlogd [^s]`, (*reader).serveJobs},
	{`queue create (jobs|orders)`, func(r *reader) {
		for _, name := range []string{"jobs", "orders"} {
			err := r.client.DeleteQueue(r.Context(), name, true)
			require.True(r, err == nil || errors.Is(err, client.ErrQueueNotFound), "%v", err)
		}
	}},
	{`lines.ndjson`, sh(`printf '{"n":1}\n{"n":2}\n' >lines.ndjson`)},
	{`exported.ndjson`, sh(`printf '{"source_id":"a1","payload":{"n":1}}\n' >exported.ndjson`)},
	{`policy.json`, sh(`echo '{"delivery":{"max_attempts":3}}' >policy.json`)},
	{`hooks|mail|jobs-again`, func(r *reader) {
		for _, name := range []string{"hooks", "mail", "jobs-again"} {
			require.NoError(r, r.client.EnsureQueue(r.Context(), name, client.Queue{}))
		}
	}},
	{`(lease|work) jobs|message|events|explain|replay`, func(r *reader) { r.id(r.message()) }},
	{`qlogd (ack|retry|dead-letter|extend|release) 01J`, func(r *reader) {
		r.message()
		r.id(r.lease(1)[0].LeaseID)
	}},
	{`message resurrect`, func(r *reader) {
		for _, m := range r.lease(99) {
			must(r.client.Ack(r.Context(), "jobs", m.LeaseID))
		}
	}},
	{`qlogd dead |--bisect`, func(r *reader) {
		for range 10 {
			r.id(r.message())
		}
		r.dead()
	}},
	{`task (get|watch|cancel|resume)`, func(r *reader) { r.id(r.slowTask()) }},
	{`task resume`, sh(`qlogd task cancel $id --yes`)},
	{`webhook (get|test|delete|deliveries)`, func(r *reader) {
		for name, secret := range map[string]string{
			"github": "GITHUB_SECRET", "pagerduty": "PAGERDUTY_SECRET"} {
			_, _, err := r.client.PutWebhook(r.Context(), name, client.WebhookDefinition{Queue: "jobs",
				VerifyHMAC: &wire.VerifyHMAC{Scheme: name, SecretEnv: wire.Strings{secret}}})
			require.NoError(r, err)
		}
	}},
	{`pagerduty.json`, sh(`echo '{"queue":"jobs"}' >pagerduty.json`)},
	{`event.json`, sh(`echo '{"event":{"id":"1"}}' >event.json`)},
	{`apply .*\.yaml`, sh(`qlogd export definitions >qlogd.yaml; cp qlogd.yaml queues.yaml
		printf 'webhooks:\n- name: any\n  queue: jobs\n' >webhooks.yaml`)},
	{`:8070|:7080`, sh(`another() {
			running $1 || qlogd serve --data-dir ./$1 --http-addr $1 --raft-addr $2
		}
		another 127.0.0.1:8070 127.0.0.1:8071; another 127.0.0.1:7080 127.0.0.1:7081`)},
	{`--config qlogd.yaml`, sh(`echo 'log-level: warn' >qlogd.yaml`)},
	{`ca.pem`, sh(`openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=n1 \
		-addext subjectAltName=IP:127.0.0.1 -addext extendedKeyUsage=serverAuth,clientAuth \
		-keyout n1.key -out ca.pem; cp ca.pem n1.pem`)},
	{`tls dev`, sh(`rm -rf certs`)},
	{`prod.token`, sh(`echo secret >prod.token`)},
	{`cluster (.*n2|transfer)`, (*reader).serveThree},
	{`heads.jsonl`, sh(`qlogd log export-heads | tee heads.jsonl >/elsewhere/heads.jsonl`)},
	{`/backup/qlogd|/var/lib/qlogd|n1 --against|broken`, sh(`
		for to in /backup/qlogd /var/lib/qlogd n1 n2 broken; do
			mkdir -p $to; for i in {1..20}; do cp -r qlogd-data/. $to && break; [ $i != 20 ]; done # it changes
		done`)},
	{`/mnt/backup`, sh(`qlogd log archive --to /mnt/backup/qlogd`)},
	{`qlogd serve|rebuild --data-dir`, sh(`stop_servers`)},
}

// serveJobs starts a server, if none serves, with a queue jobs.
func (r *reader) serveJobs() {
	r.must(`running $QLOGD_HTTP_ADDR || {
		stop_servers
		export GITHUB_SECRET=It MY_SECRET=pd PAGERDUTY_SECRET=pd
		qlogd serve
	}`)
	require.NoError(r, r.client.EnsureQueue(r.Context(), "jobs",
		client.Queue{MaxAttempts: 1, DeadLetterQueue: "auto"}))
}

// serveThree lets n2 and n3 join, each with an empty directory, where they are no voters.
func (r *reader) serveThree() {
	voters := func() (voters []string) {
		c, err := r.client.Cluster(r.Context())
		require.NoError(r, err)
		for _, n := range c.Nodes {
			if n.Voter {
				voters = append(voters, n.ID)
			}
		}
		return voters
	}
	all := map[string]string{"n2": "127.0.0.1:708", "n3": "127.0.0.1:709"}
	for _, name := range sortedKeys(all) {
		if slices.Contains(voters(), name) {
			continue
		}
		http, raft := all[name]+"0", all[name]+"1"
		_, _, err := r.client.AddNode(r.Context(), client.NewNode{ID: name, RaftAddr: r.address(raft)})
		require.NoError(r, err)
		r.must(fmt.Sprintf("stop_server %[1]s; rm -rf %[2]s; qlogd serve --node-id %[2]s "+
			"--data-dir %[2]s --http-addr %[1]s --raft-addr %[3]s --join 127.0.0.1:7071", http, name, raft))
	}
	cluster.Until(r.T, func() error {
		if n := len(voters()); n < 3 {
			return fmt.Errorf("%d voters", n)
		}
		return nil
	})
}

// id sets the variable that stands for 01J….
func (r *reader) id(id string) { r.must("id=" + id) }

// message enqueues a message in jobs and returns its id.
func (r *reader) message() string {
	return must(r.client.Enqueue(r.Context(), "jobs", client.NewMessage{
		Payload: []byte(`{"n":1}`), Key: "customer-42", Kind: "fetch"})).ID
}

func (r *reader) lease(most int) []client.LeasedMessage {
	return must(r.client.Lease(r.Context(), "jobs", client.LeaseOptions{Max: most}))
}

// dead dead-letters what jobs has.
func (r *reader) dead() {
	for _, m := range r.lease(99) {
		must(r.client.DeadLetter(r.Context(), "jobs",
			[]client.DeadLetterItem{{LeaseID: m.LeaseID, Error: "timeout"}}))
	}
}

// slowTask starts a task that takes seconds, and returns its id.
func (r *reader) slowTask() string {
	for range 3 {
		r.message()
	}
	r.dead()
	_, task, err := r.client.Replay(r.Context(), "jobs",
		client.ReplayRequest{Filter: &wire.DeadFilter{}, RatePerSecond: new(int64(1))})
	require.True(r, task != nil, "replay: %v", err)
	return task.ID
}

var pastState = regexp.MustCompile(`--at (\d+[mh]\b|202[56]\S+)`)

// alone are the groups of commands that start servers, or change how they are reached. The others
// share a server.
var alone = []string{"cluster", "config", "context", "log", "replay", "serve"}

// TestHelpExamples runs the examples of the help that no page runs.
func TestHelpExamples(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	comment := regexp.MustCompile(`\s+#.*`)
	for _, p := range allPages(t) {
		for _, b := range p.toRun(t) {
			for _, line := range commandLines(b.text) {
				seen[comment.ReplaceAllString(line, "")] = true
			}
		}
	}
	groups := map[string][]block{}
	for _, name := range sortedKeys(sections()) {
		_, examples, _ := strings.Cut(sections()[name], "\n\nExamples:\n")
		for _, line := range commandLines(examples) {
			if seen[line] || needsMore(line) != "" {
				continue
			}
			seen[line] = true
			// A new server has no state of an hour ago.
			text := pastState.ReplaceAllString(strings.ReplaceAll(line, "01J…", "$id"), "--at now")
			b := block{label: "sh", text: text + "\n"}
			for _, n := range needs {
				if regexp.MustCompile(n.of).MatchString(line) {
					b.prepare = append(b.prepare, n.do)
				}
			}
			group, _, _ := strings.Cut(name, " ")
			if !slices.Contains(alone, group) {
				group = "others"
			}
			groups[group] = append(groups[group], b)
		}
	}
	for _, group := range sortedKeys(groups) {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			newReader(t).run("qlogd "+group+" --help", groups[group])
		})
	}
}
