package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// clocks are files that say by how many milliseconds each node's wall clock is
// off (QLOGD_TEST_CLOCK, of programs built with -tags qlogdtest).
type clocks struct {
	t   *testing.T
	dir string
}

func (c clocks) file(i int) string { return filepath.Join(c.dir, fmt.Sprint("clock-", i)) }

func (c clocks) set(i int, off time.Duration) {
	c.t.Helper()
	// In one piece: it is read all the time.
	tmp := c.file(i) + ".tmp"
	if err := os.WriteFile(tmp, fmt.Append(nil, off.Milliseconds()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(tmp, c.file(i)); err != nil {
		c.t.Fatal(err)
	}
}

const tenYears = 10 * 365 * 24 * time.Hour

// TestClockJump: the clock of one node jumps by ten years, forward or back,
// while it leads and while it follows, and again while leadership moves to it and
// away, and it is started anew: what is to last for hours lasts, what is to last
// for moments ends, and writes go on.
func TestClockJump(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"forward": tenYears, "back": -tenYears} {
		t.Run(name, func(t *testing.T) {
			cs := clocks{t, t.TempDir()}
			c := cluster.StartCluster(t, cluster.Options{
				Nodes: 3, Bin: cluster.BinaryWith(t, "-tags", "qlogdtest"),
				PerNode: func(i int, o *cluster.Options) {
					cs.set(i, 0)
					o.Env = append(o.Env, "QLOGD_TEST_CLOCK="+cs.file(i))
				},
			})
			place := func(n *cluster.Node) int {
				for i, m := range c.Nodes() {
					if m == n {
						return i
					}
				}
				return -1
			}
			cl := c.Client()
			queue(t, cl, "long", `{"delivery":{"lease_ms":7200000}}`)
			queue(t, cl, "aging", `{"retention":{"max_age_seconds":7200}}`)
			queue(t, cl, "short", `{"delivery":{"lease_ms":200,"max_attempts":0,"initial_backoff_ms":1}}`)

			// What lasts for two hours.
			put := func(q string, m wire.NewMessage) {
				t.Helper()
				if _, err := cl.Produce(t.Context(), q, m); err != nil {
					t.Fatal(err)
				}
			}
			put("long", client.JSON("leased"))
			held, err := cl.Lease(t.Context(), "long", client.LeaseOptions{})
			if err != nil || len(held) != 1 {
				t.Fatalf("leased %v, %v", held, err)
			}
			later := client.JSON("delayed")
			later.DelayMS = 2 * 3600 * 1000
			put("long", later)
			put("aging", client.JSON("of two hours at most"))

			still := func(when string) {
				t.Helper()
				q, err := cl.Queue(t.Context(), "long")
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				if q.Stats.InFlight != 1 || q.Stats.Scheduled != 1 {
					t.Fatalf("%s: of one leased and one delayed message %d and %d are left", when, q.Stats.InFlight, q.Stats.Scheduled)
				}
				if q, err = cl.Queue(t.Context(), "aging"); err != nil || q.Stats.Depth != 1 {
					t.Fatalf("%s: %d of one message that may wait for two hours is left, %v", when, q.Stats.Depth, err)
				}
				// Short leases end.
				put("short", client.JSON(when))
				got, err := cl.Lease(t.Context(), "short", client.LeaseOptions{})
				if err != nil || len(got) != 1 || got[0].Attempt != 1 {
					t.Fatalf("%s: leased %v, %v", when, got, err)
				}
				for deadline := time.Now().Add(30 * time.Second); ; {
					again, err := cl.Lease(t.Context(), "short", client.LeaseOptions{Wait: time.Second})
					if err == nil && len(again) == 1 && again[0].ID == got[0].ID {
						if _, err := cl.Ack(t.Context(), "short", again[0].LeaseID); err != nil {
							t.Fatalf("%s: %v", when, err)
						}
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("%s: a lease of 200 ms does not end: %v, %v", when, again, err)
					}
				}
			}
			move := func(to *cluster.Node) {
				t.Helper()
				if c.WaitLeader() == to {
					return
				}
				if _, err := cl.TransferLeadership(t.Context(), to.Name()); err != nil {
					t.Fatal(err)
				}
				if now := c.WaitLeader(); now != to {
					t.Logf("leadership went to %s, not to %s", now.Name(), to.Name())
				}
			}
			still("at first")
			leader := c.WaitLeader()
			cs.set(place(leader), off)
			still("after the leader's clock jumped")
			follower := c.Others(leader)[0]
			move(follower)
			still("after another node took over")
			move(leader)
			still("after the node with the wrong clock took over again")
			leader.Term()
			leader.Restart()
			still("after that node was started anew")
			move(leader)
			still("after it took over then")
			cs.set(place(leader), 0)
			still("after its clock was put right while it leads")

			cs.set(place(follower), off)
			still("after a follower's clock jumped")
			for i := range 3 {
				n := c.WaitLeader()
				n.Kill9()
				c.WaitLeader(n)
				still(fmt.Sprintf("after the death %d of a leader", i+1))
				n.Restart()
			}
			cs.set(place(follower), 0)
			still("after all is right again")

			if _, err := cl.AckOne(t.Context(), held[0].LeaseID, wire.AckOne{}); err != nil {
				t.Errorf("the long lease: %v", err)
			}
		})
	}
}

// TestClockWrongFromTheStart: of the three that form a cluster one has a clock
// that is years off, and leads as often as the others: the log's time is what
// most of them agree on, also after all were killed.
func TestClockWrongFromTheStart(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"forward": tenYears, "back": -tenYears} {
		t.Run(name, func(t *testing.T) {
			cs := clocks{t, t.TempDir()}
			c := cluster.StartCluster(t, cluster.Options{
				Nodes: 3, Bin: cluster.BinaryWith(t, "-tags", "qlogdtest"),
				PerNode: func(i int, o *cluster.Options) {
					cs.set(i, 0)
					o.Env = append(o.Env, "QLOGD_TEST_CLOCK="+cs.file(i))
					if i == 0 {
						cs.set(0, off)
					}
				},
			})
			cl := c.Client()
			check := func(when string) {
				t.Helper()
				queue(t, cl, "q-"+when, "")
				q, err := cl.Queue(t.Context(), "q-"+when)
				if err != nil {
					t.Fatal(err)
				}
				made := time.UnixMilli(int64(q.CreatedAt))
				if d := time.Since(made).Abs(); d > time.Hour {
					t.Errorf("%s: the log's time is %s, which is %s off", when, made, d)
				}
			}
			check("formed")
			for i := range 3 {
				n := c.WaitLeader()
				n.Kill9()
				c.WaitLeader(n)
				check(fmt.Sprint("led-by-another-", i))
				n.Restart()
			}
			c.Kill9All()
			c.LaunchAll()
			c.WaitReady()
			check("all-killed")
			if _, err := cl.TransferLeadership(t.Context(), "n1"); err == nil {
				c.WaitLeader(c.Node(1), c.Node(2))
				check("led-by-the-wrong-clock")
			}
		})
	}
}
