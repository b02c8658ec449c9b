package console

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
)

var clusterPages = []route{
	{"GET cluster", "cluster", (*page).cluster},
	{"POST cluster/checkpoint", "cluster", (*page).checkpoint},
	{"POST cluster/transfer", "cluster", (*page).transfer},
	{"POST cluster/nodes/{id}/verify", "cluster", (*page).verifyNode},
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

// clusterForm returns a form that changes the cluster.
func (p *page) clusterForm(title, submit, text string, fields ...field) *form {
	f := p.newForm(title, submit, p.LinkNow("cluster"), fields...)
	f.Text = text
	return f
}

// checkpoint lets every node take a checkpoint.
func (p *page) checkpoint() error {
	f := p.clusterForm("Take a checkpoint", "Take a checkpoint on every node", "Every node that can "+
		"be reached writes its state to its disk. A start then folds only what comes after it. Nodes "+
		"do this by themselves, too.")
	f.As = p.as("POST", "/v1/cluster/snapshot", nil, []string{"cluster", "snapshot"})
	return p.send(f, func() error {
		indexes, err := p.api.Snapshot(p.ctx, p.once())
		var parts []string
		for _, id := range slices.Sorted(maps.Keys(indexes)) {
			parts = append(parts, fmt.Sprintf("%s at index %d", id, indexes[id]))
		}
		return p.done(err, "Took checkpoints: "+strings.Join(parts, ", ")+".", "cluster")
	})
}

// transfer makes another node the leader.
func (p *page) transfer() error {
	c, err := p.api.Cluster(p.ctx, p.now())
	if err != nil {
		return err
	}
	to := field{Name: "to", Label: "To", None: "whichever is furthest"}
	for _, n := range c.Nodes {
		if n.Voter && n.ID != c.LeaderID {
			to.Options = append(to.Options, n.ID)
		}
	}
	f := p.clusterForm("Transfer leadership", "Transfer leadership", "The leader is "+
		cmp.Or(c.LeaderID, "not known yet")+". Writes wait for a moment while another voter takes over; "+
		"none is lost.", to)
	next := f.get("to")
	f.As = p.as("POST", "/v1/cluster/transfer-leadership", wire.TransferRequest{To: optional(next)},
		append([]string{"cluster", "transfer"}, strings.Fields(next)...))
	return p.send(f, func() error {
		leader, err := p.api.TransferLeadership(p.ctx, next, p.once())
		return p.done(err, "The leader is "+cmp.Or(leader, "not known yet")+".", "cluster")
	})
}

// verifyNode begins to verify the files of a node.
func (p *page) verifyNode() error {
	id := p.r.PathValue("id")
	f := p.clusterForm("Verify node "+id, "Verify "+id, "The node reads every byte of its event log "+
		"and checkpoints, folds the log, and compares. It serves meanwhile, and reads at most 50 MB a "+
		"second. The task can be cancelled.")
	f.As = p.as("POST", v1("cluster", "nodes", id, "verify"), nil, []string{"cluster", "verify", id})
	return p.send(f, func() error {
		task, err := p.api.VerifyNode(p.ctx, id, p.once())
		if err != nil {
			return err
		}
		return p.done(nil, "Verifying "+id+".", "tasks", task.ID)
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
	voters := int64(0)
	for i, n := range c.Nodes {
		if n.Voter && i != at {
			voters++
		}
	}
	f := p.clusterForm("Remove node "+id, "Remove "+id+" for ever", id+" leaves the cluster for ever, "+
		"and its data directory cannot come back. "+plural(voters, "voter")+" remain.", field{
		Name: "force", Kind: "checkbox",
		Label: "Also if the remaining voters have no reachable majority"})
	f.Danger, f.Type = true, id
	cli, force := []string{"cluster", "remove", id, "--yes"}, f.get("force")
	if force != "" {
		cli = append(cli, "--force")
	}
	f.As = p.as("DELETE", v1("cluster", "nodes", id)+query("force", force), nil, cli)
	return p.send(f, func() error {
		err := p.api.RemoveNode(p.ctx, id, force != "", p.once())
		return p.done(err, "Removed node "+id+".", "cluster")
	})
}
