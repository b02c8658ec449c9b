package main

import (
	"os"
	"path"
	"runtime"
	"runtime/debug"
	rt "runtime/metrics"
	"strconv"
	"strings"
)

// A node keeps little alive and makes much garbage: with the runtime's own
// measure, as much garbage as there is alive, it would collect many times a
// second. So the measure is taken anew after each collection: at least headroom
// of garbage, or as much as there is alive where that is more.
//
// It is garbage that the headroom is for, so it does not grow with what waits in
// the queues; and it is bounded by a sixteenth of the machine's memory. Nor is it
// much: what is used over and over stays near the processor, and pages that the
// machine has to give out anew cost more than a collection of so little. GOGC in
// the environment turns it off; GOMEMLIMIT counts as ever.
const (
	headroomMost = 64 << 20
	headroomPart = 16
)

// heapSample is for how many allocated bytes there is one sample in a heap profile.
// By the runtime's own measure, an eighth of it, every other buffer for a batch is
// one, and the walks of the stacks take a hundredth of a busy node's time.
const heapSample = 4 << 20

// tuneHeapProfile sets the measure of heap profiles.
func tuneHeapProfile() {
	const usual = 512 << 10
	if runtime.MemProfileRate == usual { // GODEBUG counts
		runtime.MemProfileRate = heapSample
	}
}

// tuneCollector sets and keeps the measure.
func tuneCollector(getenv func(string) string) {
	if getenv("GOGC") != "" {
		return
	}
	t := &collector{headroom: headroom(memoryOf(os.ReadFile))}
	t.tune()
	t.again()
}

type collector struct {
	headroom uint64
	percent  int
}

// again has tune called after the next collection: an object that nobody has is
// found by it.
func (t *collector) again() {
	type canary struct{ _ [16]byte } // not one of those that share an allocation
	runtime.AddCleanup(new(canary), func(t *collector) {
		t.tune()
		t.again()
	}, t)
}

func (t *collector) tune() {
	// The runtime takes its percentage of stacks and globals, too.
	marked := []rt.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	rt.Read(marked)
	live := uint64(0)
	for i := range marked {
		live += marked[i].Value.Uint64()
	}
	p := percentFor(live, t.headroom)
	// To change it stops the world for a moment: not for little.
	if p*10 < t.percent*9 || p*9 > t.percent*10 {
		t.percent = p
		debug.SetGCPercent(p)
	}
}

// heapLeast is the heap up to which the runtime collects nothing at 100 percent;
// it grows with the percentage, whatever is alive.
const heapLeast = 4 << 20

// percentFor is how much garbage there may be, in percent of what is alive: 0
// before the first collection, which must come by the headroom, too.
func percentFor(live, headroom uint64) int {
	const runtimes = 100
	return int(max(headroom*100/max(live, heapLeast), runtimes))
}

// headroom is how much garbage there may be on a machine with so much memory; 0
// is not known.
func headroom(memory uint64) uint64 {
	if memory == 0 {
		return headroomMost / 2
	}
	return min(headroomMost, memory/headroomPart)
}

// memoryOf returns the memory of the machine, or that which its control group, or
// one above that, may take; 0 where neither says.
func memoryOf(read func(string) ([]byte, error)) (memory uint64) {
	if b, err := read("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
				kib, _ := strconv.ParseUint(f[1], 10, 54)
				memory = kib << 10
			}
		}
	}
	const groups = "/sys/fs/cgroup"
	limits := []string{groups + "/memory.max", groups + "/memory/memory.limit_in_bytes"} // a container's own; version 1
	if b, err := read("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(b)) {
			if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok { // systemd's MemoryMax=
				for ; own != "" && own != "."; own = path.Dir(own) {
					limits = append(limits, path.Join(groups, own, "memory.max"))
				}
			}
		}
	}
	for _, name := range limits {
		if b, err := read(name); err == nil {
			if limit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && (memory == 0 || limit < memory) {
				memory = limit
			}
		}
	}
	return memory
}
