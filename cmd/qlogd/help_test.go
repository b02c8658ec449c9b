package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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

// needs are commands by the examples that they prepare. Those of all that fit run before it, in
// this order.
var needs = []struct{ of, sh string }{
	{`qlogd serve`, `stop_servers`},
	{`^`, `curl -qfso out $QLOGD_ADDR/readyz || qlogd serve
		if ! curl -qfso out $QLOGD_ADDR/v1/queues/jobs; then
		qlogd queue create jobs --max-attempts 1 --dead-letter-queue auto; fi
		message() { qlogd enqueue jobs --key customer-42 --kind fetch '{"n":1}'; }
		dead() { qlogd lease jobs --max 99 -o json | jq -r .lease_id | qlogd dead-letter - --error timeout; }
		slow_task() { for i in 1 2 3; do id=$(message); done; dead
			id=$(qlogd dead replay jobs --all --rate 1 --yes -o json | jq -r .id); }`},
	{`queue create (jobs|orders)`, `qlogd queue delete jobs --yes --force
		qlogd queue delete orders --yes --force || true`},
	{`lines.ndjson`, `printf '{"n":1}\n{"n":2}\n' >lines.ndjson`},
	{`exported.ndjson`, `printf '{"source_id":"a1","payload":{"n":1}}\n' >exported.ndjson`},
	{`policy.json`, `echo '{"delivery":{"max_attempts":3}}' >policy.json`},
	{`hooks|mail|jobs-again`, `for q in hooks mail jobs-again; do qlogd queue create $q; done`},
	{`(lease|work) jobs`, `message`},
	{`qlogd (ack|retry|dead-letter|extend|release) 01J`,
		`message; id=$(qlogd lease jobs -o json | jq -r .lease_id)`},
	{`message|events|explain|replay`, `id=$(message)`},
	{`message resurrect`, `qlogd lease jobs --ack --all`},
	{`qlogd dead `, `id=$(message); dead`},
	{`task (get|watch|cancel|resume)`, `slow_task`},
	{`task resume`, `qlogd task cancel $id --yes`},
	{`webhook`, `if [ -z "${GITHUB_SECRET-}" ]; then
		GITHUB_SECRET=It MY_SECRET=pd PAGERDUTY_SECRET=pd; qlogd serve; fi`},
	{`webhook (get|test|delete|deliveries) github`,
		`qlogd webhook put github --queue jobs --scheme github --secret-env GITHUB_SECRET`},
	{`pagerduty.json`, `echo '{"queue":"jobs"}' >pagerduty.json`},
	{`webhook test pagerduty`, `echo '{"event":{"id":"1"}}' >event.json
		qlogd webhook put pagerduty --queue jobs --scheme pagerduty --secret-env PAGERDUTY_SECRET`},
	{`apply .*\.yaml`, `qlogd export definitions >qlogd.yaml; cp qlogd.yaml queues.yaml
		printf 'webhooks:\n- name: any\n  queue: jobs\n' >webhooks.yaml`},
	{`:8070|:7080`, `qlogd serve --data-dir ./another --http-addr 127.0.0.1:8070 --raft-addr 127.0.0.1:8071
		qlogd serve --data-dir ./third --http-addr 127.0.0.1:7080 --raft-addr 127.0.0.1:7081`},
	{`--config qlogd.yaml`, `echo 'log-level: warn' >qlogd.yaml`},
	{`ca.pem`, `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=n1 \
		-addext subjectAltName=IP:127.0.0.1 -addext extendedKeyUsage=serverAuth,clientAuth \
		-keyout n1.key -out ca.pem; cp ca.pem n1.pem`},
	{`tls dev`, `rm -rf certs`},
	{`prod.token`, `echo secret >prod.token`},
	{`cluster (.*n2|transfer)`, `
		member() { curl -qs $QLOGD_ADDR/v1/cluster | jq -e ".nodes[] | select(.id == \"$1\" and .voter)" >out; }
		join() { member $1 || {
			mkdir -p old && { [ ! -e $1 ] || mv $1 old/$RANDOM; }
			qlogd cluster add $1 $3
			qlogd serve --node-id $1 --data-dir $1 --http-addr $2 --raft-addr $3 --join 127.0.0.1:7071
		} }
		join n2 127.0.0.1:7080 127.0.0.1:7081; join n3 127.0.0.1:7090 127.0.0.1:7091
		until member n2 && member n3; do sleep 0.05; done`},
	{`--bisect`, `qlogd enqueue jobs 1 2 3 4 5 6 7 8 9 10; dead`},
	{`heads.jsonl`, `qlogd log export-heads | tee heads.jsonl >/elsewhere/heads.jsonl`},
	{`/backup/qlogd|/var/lib/qlogd|n1 --against|broken`, `for to in /backup/qlogd /var/lib/qlogd n1 n2 broken; do
		mkdir -p $to; until cp -r qlogd-data/. $to; do :; done; done # it changes`},
	{`/mnt/backup`, `qlogd log archive --to /mnt/backup/qlogd`},
	{`qlogd serve|rebuild --data-dir`, `stop_servers`},
}

var pastState = regexp.MustCompile(`--at (\d+[mh]\b|202[56]\S+)`)

// TestHelpExamples runs the examples of the help. Those of a command and its subcommands share a
// server.
func TestHelpExamples(t *testing.T) {
	t.Parallel()
	groups := map[string][]block{}
	seen := map[string]bool{}
	for _, name := range sortedKeys(sections()) {
		_, examples, _ := strings.Cut(sections()[name], "\n\nExamples:\n")
		for _, line := range commandLines(examples) {
			line = strings.TrimSpace(line)
			if seen[line] || line == "" {
				continue
			}
			seen[line] = true
			// A new server has no state of an hour ago.
			text := pastState.ReplaceAllString(strings.ReplaceAll(line, "01J…", "$id"), "--at now")
			b := block{label: "sh", text: text + "\n"}
			for _, n := range needs {
				if regexp.MustCompile(n.of).MatchString(line) {
					b.before += n.sh + "\n"
				}
			}
			group, _, _ := strings.Cut(name, " ")
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
