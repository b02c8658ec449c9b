package main

import (
	"errors"
	"runtime/debug"
	rt "runtime/metrics"
	"strconv"
	"testing"
)

func TestHeadroom(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, memory uint64
		want         int
	}{
		{10 * mib, 64 << 30, 640},  // little alive: as much garbage as the headroom
		{128 * mib, 64 << 30, 100}, // as much
		{4 << 30, 64 << 30, 100},   // more: the runtime's own measure
		{16 * mib, 1 << 30, 400},   // a small machine
		{0, 64 << 30, 1600},        // before the first collection: it comes at the headroom
		{1, 256 << 20, 400},        // where ten thousand percent would be 400 MiB
		{0, 32 << 20, 100},         // the runtime's own measure at least
		{16 * mib, 0, 200},         // not known
	} {
		if got := percentFor(c.live, headroom(c.memory)); got != c.want {
			t.Errorf("%d alive on a machine of %d: %d percent, not %d", c.live, c.memory, got, c.want)
		}
	}
	files := map[string]string{"/proc/meminfo": "MemFree:  5 kB\nMemTotal:       2048 kB\n"}
	read := func(name string) ([]byte, error) {
		if s, ok := files[name]; ok {
			return []byte(s), nil
		}
		return nil, errors.New("no such file")
	}
	for _, c := range []struct {
		limit string
		want  uint64
	}{{"", 2 * mib}, {"max\n", 2 * mib}, {"1048576\n", mib}, {"99999999\n", 2 * mib}} {
		if files["/sys/fs/cgroup/memory.max"] = c.limit; c.limit == "" {
			delete(files, "/sys/fs/cgroup/memory.max")
		}
		if got := memoryOf(read); got != c.want {
			t.Errorf("limit %q: %d", c.limit, got)
		}
	}
	files["/proc/self/cgroup"] = "0::/system.slice/qlogd.service\n"
	for _, c := range []struct {
		file string
		want uint64
	}{
		{"/sys/fs/cgroup/system.slice/qlogd.service/memory.max", mib},
		{"/sys/fs/cgroup/system.slice/memory.max", mib / 2}, // the one above counts, too
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", mib / 4},
	} {
		files[c.file] = strconv.FormatUint(c.want, 10) + "\n"
		if got := memoryOf(read); got != c.want {
			t.Errorf("%s: %d", c.file, got)
		}
	}
	if got := memoryOf(func(string) ([]byte, error) { return nil, errors.New("no such file") }); got != 0 {
		t.Errorf("nothing known: %d", got)
	}
}

// The runtime's least heap grows with the percentage: it must not be more than
// the headroom, or a small container's memory is gone before the first collection.
func TestFirstCollectionByHeadroom(t *testing.T) {
	const memory = 256 << 20
	was := debug.SetGCPercent(percentFor(0, headroom(memory)))
	defer debug.SetGCPercent(was)
	goal := []rt.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: "/gc/heap/live:bytes"}}
	rt.Read(goal)
	if got, live := goal[0].Value.Uint64(), goal[1].Value.Uint64(); got > headroom(memory)+8*max(live, heapLeast) {
		t.Errorf("with %d bytes alive the next collection comes at %d of %d", live, got, uint64(memory))
	}
}
