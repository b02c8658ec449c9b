package console

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
)

var clusterPages = []route{
	{"GET cluster", "cluster", (*page).cluster},
	{"GET cluster/checkpoint", "cluster", (*page).checkpoint},
	{"POST cluster/checkpoint", "cluster", (*page).checkpoint},
	{"GET cluster/transfer", "cluster", (*page).transfer},
	{"POST cluster/transfer", "cluster", (*page).transfer},
	{"GET cluster/nodes/{id}/verify", "cluster", (*page).verifyNode},
	{"POST cluster/nodes/{id}/verify", "cluster", (*page).verifyNode},
	{"GET cluster/nodes/{id}/remove", "cluster", (*page).removeNode},
	{"POST cluster/nodes/{id}/remove", "cluster", (*page).removeNode},
}

// cluster shows the nodes as this one knows them.
func (p *page) cluster() error {
	c, err := p.api.Cluster(p.ctx, p.now())
	if err != nil {
		return err
	}
	data := clusterData{Cluster: c}
	for i := range c.Nodes {
		data.applied = max(data.applied, c.Nodes[i].AppliedIndex)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		data.Nodes = append(data.Nodes, nodeRow{
			Node: n, Lag: data.applied - n.AppliedIndex, Chain: compareChain(n, c.Nodes),
		})
		if n.Voter {
			data.Voters++
		}
		if n.Reachable {
			data.Reachable++
		}
	}
	return p.show("cluster", "Cluster", data)
}

type clusterData struct {
	*wire.Cluster
	Nodes             []nodeRow
	Voters, Reachable int64
	applied           uint64 // by any node
}

// nodeRow is a node, compared with the others.
type nodeRow struct {
	*wire.Node
	Lag   uint64 // entries behind the one that is furthest
	Chain chain
}

// Used is the part of the disk that is not free, in percent.
func (n nodeRow) Used() int64 {
	if n.Disk == nil || n.Disk.SizeBytes == 0 {
		return 0
	}
	return 100 - n.Disk.FreeBytes*100/n.Disk.SizeBytes
}

// chain is what the chains of the nodes' logs say about one of them.
type chain struct{ State, Text string }

// compareChain compares the head of a node's log with those of the others: at the same index all
// chains are equal.
func compareChain(n *wire.Node, all []wire.Node) chain {
	var equal, differ []string
	for i := range all {
		o := &all[i]
		switch {
		case o.ID == n.ID || o.ChainHash == "" || o.LogHead != n.LogHead:
		case o.ChainHash == n.ChainHash:
			equal = append(equal, o.ID)
		default:
			differ = append(differ, o.ID)
		}
	}
	switch {
	case n.ChainHash == "":
		return chain{"", "not known"}
	case len(differ) > 0:
		return chain{"dead", "differs from " + strings.Join(differ, ", ")}
	case len(equal) > 0:
		return chain{"acked", "equal to " + strings.Join(equal, ", ")}
	case len(all) == 1:
		return chain{"", "no other node"}
	}
	return chain{"", "no other node is at this block now"}
}

// checkpoint lets every node take a checkpoint.
func (p *page) checkpoint() error {
	f := &confirm{
		Title: "Take a checkpoint", Submit: "Take a checkpoint on every node",
		Text: "Every node that can be reached writes its state to its disk. A start then folds only " +
			"what comes after it. Nodes do this by themselves, too.",
		Action: p.LinkNow("cluster", "checkpoint"), Back: p.LinkNow("cluster"),
		As: p.as("POST", "/v1/cluster/snapshot", "", "cluster", "snapshot"),
	}
	return p.confirmed(f, func() error {
		indexes, err := p.api.Snapshot(p.ctx)
		if err != nil {
			return err
		}
		var parts []string
		for _, id := range slices.Sorted(maps.Keys(indexes)) {
			parts = append(parts, fmt.Sprintf("%s at index %d", id, indexes[id]))
		}
		return p.done("Took checkpoints: "+strings.Join(parts, ", ")+".", "cluster")
	})
}

// transfer makes another node the leader.
func (p *page) transfer() error {
	c, err := p.api.Cluster(p.ctx, p.now())
	if err != nil {
		return err
	}
	to := field{Name: "to", Label: "To", Value: p.Param("to"), Options: []string{""}}
	for _, n := range c.Nodes {
		if n.Voter && n.ID != c.LeaderID {
			to.Options = append(to.Options, n.ID)
		}
	}
	body := ""
	cli := []string{"cluster", "transfer"}
	if to.Value != "" {
		body, cli = `{"to":"`+to.Value+`"}`, append(cli, to.Value)
	}
	f := &confirm{
		Title: "Transfer leadership", Submit: "Transfer leadership", Choice: &to,
		Text: fmt.Sprintf("The leader is %s. Writes wait for a moment while another voter takes over; "+
			"none is lost.", orNone(c.LeaderID)),
		Action: p.LinkNow("cluster", "transfer"), Back: p.LinkNow("cluster"),
		As: p.as("POST", "/v1/cluster/transfer-leadership", body, cli...),
	}
	return p.confirmed(f, func() error {
		to.Value = p.r.PostForm.Get("to")
		leader, err := p.api.TransferLeadership(p.ctx, to.Value)
		if err != nil {
			return err
		}
		return p.done("The leader is "+orNone(leader)+".", "cluster")
	})
}

func orNone(id string) string {
	if id == "" {
		return "not known yet"
	}
	return id
}

// verifyNode begins to verify the files of a node.
func (p *page) verifyNode() error {
	id := p.r.PathValue("id")
	f := &confirm{
		Title: "Verify node " + id, Submit: "Verify " + id,
		Text: "The node reads every byte of its event log and checkpoints, folds the log, and compares. " +
			"It serves meanwhile, and reads at most 50 MB a second. The task can be cancelled.",
		Action: p.LinkNow("cluster", "nodes", id, "verify"), Back: p.LinkNow("cluster"),
		As: p.as("POST", "/v1/cluster/nodes/"+id+"/verify", "", "cluster", "verify", id),
	}
	return p.confirmed(f, func() error {
		task, err := p.api.VerifyNode(p.ctx, id)
		if err != nil {
			return err
		}
		return p.done("Verifying "+id+".", "tasks", task.ID)
	})
}

// removeNode removes a node from the cluster.
func (p *page) removeNode() error {
	id := p.r.PathValue("id")
	c, err := p.api.Cluster(p.ctx, p.now())
	if err != nil {
		return err
	}
	at := slices.IndexFunc(c.Nodes, func(n wire.Node) bool { return n.ID == id })
	if at < 0 {
		return &failure{http.StatusNotFound, "There is no such node", id}
	}
	voters := 0
	for i, n := range c.Nodes {
		if n.Voter && i != at {
			voters++
		}
	}
	f := &confirm{
		Title: "Remove node " + id, Submit: "Remove " + id + " for ever", Danger: true, Type: id,
		Text: fmt.Sprintf("%s leaves the cluster for ever, and its data directory cannot come back. "+
			"%s remain.", id, plural(int64(voters), "voter")),
		Check: "force", Checked: "Also if the remaining voters have no reachable majority",
		Action: p.LinkNow("cluster", "nodes", id, "remove"), Back: p.LinkNow("cluster"),
		As: p.as("DELETE", "/v1/cluster/nodes/"+id, "", "cluster", "remove", id, "--yes"),
	}
	return p.confirmed(f, func() error {
		if err := p.api.RemoveNode(p.ctx, id, p.r.PostForm.Get("force") == "yes"); err != nil {
			return err
		}
		return p.done("Removed node "+id+".", "cluster")
	})
}
