// Package cluster runs the real program for tests: it builds qlogd once, starts
// it on a data directory and a free port, kills it, stops it, starts it again.
//
//	func TestMain(m *testing.M) { cluster.Main(m) }
//
//	n := cluster.Start(t, cluster.Options{})
//	_, err := n.Client().Produce(ctx, "q", client.JSON(1))
//	n.Kill9()
//	n.Restart()
//
// StartCluster starts several that form a cluster, on addresses that stay; nodes
// are killed, stopped, paused (SIGSTOP), wiped and, with Options.Cuts, cut off
// from one another:
//
//	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
//	leader := c.WaitLeader()
//	leader.Kill9()
//	c.WaitLeader(leader)
//
// No test can forget to look at what is left behind: when it ends, each node is
// stopped and what `qlogd replay --verify` does must find its data directory whole. A
// cluster's nodes must have come to the same index before, and their event logs
// are compared byte for byte. Where a test fails, the nodes' logs and data
// directories are kept and named.
package cluster
