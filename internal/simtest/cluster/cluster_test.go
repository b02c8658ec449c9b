package cluster_test

import (
	"flag"
	"os"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

func TestMain(m *testing.M) {
	if addrs := os.Getenv(workerOf); addrs != "" {
		workAway(addrs)
		return
	}
	cluster.Plain()
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // they wait more than they work
	cluster.Main(m)
}
