package main

import (
	"errors"
	"testing"
)

func TestHeadroom(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, memory uint64
		want         int
	}{
		{10 * mib, 64 << 30, 1280}, // little alive: as much garbage as the headroom
		{128 * mib, 64 << 30, 100}, // as much
		{4 << 30, 64 << 30, 100},   // more: the runtime's own measure
		{16 * mib, 1 << 30, 400},   // a small machine
		{1, 64 << 30, 10_000},      // not without end
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
	if got := memoryOf(func(string) ([]byte, error) { return nil, errors.New("no such file") }); got != 0 {
		t.Errorf("nothing known: %d", got)
	}
}
