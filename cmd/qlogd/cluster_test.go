package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// canned is a server that gives the listed answers to requests with the token qlogd_t. Each line
// has METHOD PATH?QUERY BODY, an arrow, the status, and the answer's body.
type canned string

func (c canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	asked := strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(b))
	if r.Header.Get("Authorization") != "Bearer qlogd_t" {
		asked = "without the token: " + asked
	}
	for line := range strings.Lines(string(c)) {
		if request, answer, _ := strings.Cut(line, " -> "); request == asked {
			var status int
			body := ""
			_, _ = fmt.Sscan(answer, &status)
			if len(answer) > 4 {
				body = strings.TrimSpace(answer[4:])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(w, `{"code":"not_found","detail":%q,"status":404}`, asked)
}

const (
	threeNodes = `{"cluster_id":"C","node_id":"n1","leader_id":"n2","term":4,"nodes":[` +
		`{"id":"n1","raft_addr":"h1:1","http_addr":"h1:2","voter":true,"leader":false,` +
		`"reachable":false,"age_ms":null,"applied_index":9,"log_head":8,` +
		`"chain_hash":"0123456789abcdef","unconfirmed_by":[],"damaged":[],"scrub":null,` +
		`"version":"","disk":null},` +
		`{"id":"n2","raft_addr":"h2:1","http_addr":"","voter":true,"leader":true,` +
		`"reachable":true,"age_ms":0,"applied_index":9,"log_head":8,` +
		`"chain_hash":"0123456789abcdef","unconfirmed_by":["n1"],"damaged":[],"scrub":null,` +
		`"version":"","disk":null},` +
		`{"id":"n3","raft_addr":"h3:1","http_addr":"h3:2","voter":false,"leader":false,` +
		`"reachable":false,"age_ms":null,"applied_index":0,"log_head":0,"chain_hash":"",` +
		`"unconfirmed_by":[],` +
		`"damaged":[{"file":"log/1.seg","kind":"segment","since":"2026-01-01T00:00:00.000Z",` +
		`"detail":"why"}],"scrub":{"ended_at":"2026-01-01T00:00:00.000Z","took_ms":1,"bytes":2},` +
		`"version":"","disk":null}]}`

	clusterAnswers = `GET /v1/cluster -> 200 ` + threeNodes + `
POST /v1/cluster/nodes {"id":"n4","raft_addr":"h4:1"} -> 201 {"id":"n4"}
POST /v1/cluster/nodes {"id":"n2","raft_addr":"h2:1"} -> 200 {"id":"n2","voter":true}
POST /v1/cluster/nodes {"id":"n3","raft_addr":"h3:1"} -> 200 {"id":"n3","voter":false}
POST /v1/cluster/nodes {"id":"n3","raft_addr":"h3:1","voter":false} -> 200 {"id":"n3"}
POST /v1/cluster/nodes {"id":"n3","raft_addr":"h3:1","voter":true} -> 200 {"id":"n3","voter":true}
POST /v1/cluster/nodes {"id":"n5","raft_addr":"h5:1","http_addr":"h5:2","voter":false} -> 201 {}
POST /v1/cluster/nodes {"id":"n6","raft_addr":"h2:1"} -> 409 {"code":"conflict","detail":"taken"}
DELETE /v1/cluster/nodes/n3 -> 204
DELETE /v1/cluster/nodes/n3?force=true -> 204
DELETE /v1/cluster/nodes/n9 -> 404 {"code":"node_not_found","detail":"there is no node n9"}
POST /v1/cluster/transfer-leadership {} -> 200 {"leader_id":""}
POST /v1/cluster/transfer-leadership {"to":"n1"} -> 200 {"leader_id":"n1"}
POST /v1/cluster/snapshot -> 200 {"indexes":{"n2":8,"n1":7}}
`
)

func TestClusterCommands(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(canned(clusterAnswers))
	defer srv.Close()
	away := httptest.NewServer(nil)
	away.Close()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("qlogd_t\n"), 0o600))
	for _, c := range []struct {
		args string
		exit int
		out  string // all of stdout
		err  string // part of stderr
	}{
		{"list", 0, "NODE  ROLE       REACHABLE  VERSION  RAFT  HTTP  APPLIED  HEAD  CHAIN         DAMAGED  \n" +
			"n1    voter      yes        -        h1:1  h1:2  9        8     0123456789ab        0  \n" +
			"n2    leader     yes        -        h2:1  -     9        8     0123456789ab        0  \n" +
			"n3    non-voter  no         -        h3:1  h3:2  -        -     -                   1  \n",
			"cluster C, leader n2, term 4, asked n1\n" +
				"node n2 started without n1, which may know of newer entries\n" +
				"node n3: log/1.seg is damaged since 2026-01-01"},
		{"list -o json", 0, threeNodes + "\n", ""},
		{"add n4 h4:1", 0, "n4 added\n", ""},
		{"add n2 h2:1", 0, "n2 is in already\n", ""},
		{"add n3 h3:1", 0, "n3 is in already; it gets its vote once it has caught up\n", ""},
		{"add n3 h3:1 --non-voter", 0, "n3 is in already, without a vote\n", ""},
		{"add n3 h3:1 --voter", 0, "n3 is in already\n", ""},
		{"add n3 h3:1 --voter --non-voter", 2, "", "voter"},
		{"add n5 h5:1 --http-addr h5:2 --non-voter -o json", 0,
			`{"id":"","raft_addr":"","http_addr":"","voter":false,"leader":false,` +
				`"reachable":false,"age_ms":null,"applied_index":0,"log_head":0,` +
				`"chain_hash":"","unconfirmed_by":[],"damaged":[],"scrub":null,` +
				`"version":"","disk":null}` + "\n", ""},
		{"add n6 h2:1", 1, "", "taken (409 conflict)"},
		{"remove n3 --yes", 0, "n3 removed\n", ""},
		{"rm n3 -y --force", 0, "n3 removed\n", ""},
		{"remove n3", 2, "", "remove node n3 from the cluster for ever: say --yes"},
		{"remove n3 --dry-run", 0, "would remove node n3 from the cluster for ever; " +
			"2 voters left, 2 within reach\n", ""},
		{"remove n9 --dry-run", 1, "", `no node "n9"`},
		{"remove n9 --yes", 1, "", "404 node_not_found"},
		{"transfer", 0, "leader: not known yet\n", ""},
		{"transfer n1", 0, "leader: n1\n", ""},
		{"transfer n1 -o json", 0, `{"leader_id":"n1"}` + "\n", ""},
		{"snapshot", 0, "NODE  CHECKPOINT  \nn1             7  \nn2             8  \n", ""},
		{"snapshot -o json", 0, `{"indexes":{"n1":7,"n2":8}}` + "\n", ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			// The first address is of a node that is away.
			args := append([]string{"cluster"}, strings.Fields(c.args)...)
			args = append(args, "--addr", away.URL+","+srv.URL, "--token-file", file)
			exit := run(t.Context(), args, strings.NewReader(""), &out, &errOut)
			if exit != c.exit || out.String() != c.out ||
				!strings.Contains(errOut.String(), c.err) {
				t.Errorf("exit code %d, want %d\n%q\n%q", exit, c.exit, &out, &errOut)
			}
		})
	}
}
