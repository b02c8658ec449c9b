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
// No test can forget to look at what is left behind: when it ends, each node is
// stopped and `qlogd replay --verify` must find its data directory whole. Where
// a test fails, the node's log and data directory are kept and named.
package cluster
