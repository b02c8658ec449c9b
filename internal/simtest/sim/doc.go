// Package sim runs a whole cluster of three in simulated time: event log, state
// machine, hashicorp/raft, the inside network, bootstrap and fetching are the real
// ones, put together as server does below HTTP; disks and network are in
// memory (memdisk.Disk forgets what was not synced, memnet is slow, cut and reset),
// and time is a testing/synctest bubble's, so that a minute takes a fraction of
// a second.
//
// A run follows from a seed: what its clients ask for, and what a nemesis does
// to nodes, lines, disks and clocks meanwhile (Plan). In the end all is healed,
// every node's power is cut at once, and what is left is judged: by the clients'
// histories (crashtest.Check, and CheckLinear by porcupine), by the logs, which
// must be the same byte for byte, and by a verification of each data directory.
//
// The seed decides the plan and what clients want. It does not decide in which
// order goroutines run, nor hashicorp/raft's dice: the same seed may pass, and
// is then to be run again.
//
//	make sim                         2,000 seeds
//	SIM_SEEDS=n SIM_SEED=s make sim  n of them, from s on
package sim
