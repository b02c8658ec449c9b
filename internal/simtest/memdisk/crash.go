package memdisk

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// inode is a file's bytes, or a directory.
type inode struct {
	dir  bool
	data []byte // as a running program sees it

	// What the disk holds for certain is data with these sectors put back and
	// cut to synced. Invariant: old holds the synced bytes of each sector that
	// was changed since the last sync (shorter at the end of the file).
	old    map[int64][]byte
	synced int64
}

// touch remembers the synced bytes of the sectors in [from, to).
func (n *inode) touch(from, to int64) {
	if n.old == nil {
		n.old = map[int64][]byte{}
	}
	for s := from / sector; s*sector < to; s++ {
		if _, ok := n.old[s]; ok {
			continue
		}
		// Bytes past the synced size were not there at the last sync.
		end := min((s+1)*sector, n.synced, int64(len(n.data)))
		if s*sector < end {
			n.old[s] = slices.Clone(n.data[s*sector : end])
		} else {
			n.old[s] = nil
		}
	}
}

func (n *inode) writeAt(p []byte, off int64) {
	end := off + int64(len(p))
	if end > int64(len(n.data)) {
		n.touch(int64(len(n.data)), end)
		n.data = append(n.data, make([]byte, end-int64(len(n.data)))...)
	}
	n.touch(off, end)
	copy(n.data[off:], p)
}

func (n *inode) truncate(size int64) {
	have := int64(len(n.data))
	if size > have {
		n.touch(have, size)
		n.data = append(n.data, make([]byte, size-have)...)
		return
	}
	n.touch(size, have)
	// Grown again, the file must read as zeros there.
	clear(n.data[size:])
	n.data = n.data[:size]
}

func (n *inode) sync() {
	n.old, n.synced = nil, int64(len(n.data))
}

// Loss says what a power cut leaves of a file's unsynced bytes.
type Loss int

// The ways to lose unsynced bytes.
const (
	LoseAll    Loss = iota // only what was synced is left
	LoseNone               // everything is left
	LosePrefix             // the changes up to some offset are left, and none after it
	LoseRandom             // any sector may be lost, the size is the new one
)

// after returns the file as a power cut leaves it.
func (n *inode) after(loss Loss, rng *rand.Rand) *inode {
	if n.dir {
		return n
	}
	size := int64(len(n.data))
	lost := func(int64) bool { return true }
	switch loss {
	case LoseAll:
		size = n.synced
	case LoseNone:
		lost = func(int64) bool { return false }
	case LosePrefix:
		if size > n.synced {
			size = n.synced + rng.Int64N(size-n.synced+1)
		}
		cut := rng.Int64N(max(size, n.synced)/sector + 2)
		if size > n.synced && rng.IntN(2) == 0 {
			// As an append is cut: at any byte, and whole before it.
			cut = size/sector + 1
		}
		lost = func(s int64) bool { return s >= cut }
		if size < n.synced && rng.IntN(2) == 0 {
			size = n.synced
		}
	case LoseRandom:
		lost = func(int64) bool { return rng.IntN(2) == 0 }
		if size < n.synced && rng.IntN(2) == 0 {
			size = n.synced
		}
	}
	data := make([]byte, max(size, int64(len(n.data))))
	copy(data, n.data)
	for _, s := range slices.Sorted(maps.Keys(n.old)) {
		// Past the end of what a program sees, only the old bytes exist.
		if !lost(s) && s*sector < int64(len(n.data)) {
			continue
		}
		from, to := s*sector, min((s+1)*sector, int64(len(data)))
		if from >= to {
			continue
		}
		clear(data[from:to])
		copy(data[from:to], n.old[s])
	}
	if size > int64(len(n.data)) {
		// A truncation was lost: its bytes are back.
		for s, b := range n.old {
			if end := s*sector + int64(len(b)); end > int64(len(n.data)) && s*sector < size {
				copy(data[s*sector:], b)
			}
		}
	}
	data = data[:size]
	return &inode{data: data, synced: size}
}

// Crash returns the disk as a power cut leaves it, with every choice taken from
// rng: bytes and names that were synced are there, of others some may be lost.
// The old disk and its open files fail from now on.
func (m *Disk) Crash(rng *rand.Rand) *Disk {
	return m.crash(rng, func() Loss { return Loss(rng.IntN(4)) })
}

// CrashWith is Crash with the same loss for every file; names are kept with
// LoseNone, lost with LoseAll, and otherwise chosen by rng.
func (m *Disk) CrashWith(loss Loss, rng *rand.Rand) *Disk {
	return m.crash(rng, func() Loss { return loss })
}

func (m *Disk) crash(rng *rand.Rand, choose func() Loss) *Disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = true
	names := maps.Clone(m.durable)
	loss := choose()
	cut := len(m.pending)
	if loss == LosePrefix {
		cut = rng.IntN(len(m.pending) + 1)
	}
	for i, op := range m.pending {
		switch {
		case loss == LoseAll, i >= cut, loss == LoseRandom && rng.IntN(2) == 0:
		default:
			op.applyTo(names)
		}
	}
	out := New()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name].after(choose(), rng)
		out.names[name], out.durable[name] = n, n
	}
	return out
}

// Clone returns a copy of the disk as a program sees it, all of it durable.
func (m *Disk) Clone() *Disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := New()
	for name, n := range m.names {
		c := &inode{dir: n.dir, data: slices.Clone(n.data), synced: int64(len(n.data))}
		out.names[name], out.durable[name] = c, c
	}
	return out
}

// Put sets a file's bytes, durably and without counting as an operation: for
// tests that damage a file or lay one out.
func (m *Disk) Put(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := &inode{data: slices.Clone(data), synced: int64(len(data))}
	m.names[clean(name)], m.durable[clean(name)] = n, n
}

// Flip flips bits of one byte of a file, which may be open, without counting as an operation.
func (m *Disk) Flip(name string, at int, bits byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names[clean(name)].data[at] ^= bits
}

// Get returns a copy of a file's bytes, or nil.
func (m *Disk) Get(name string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[clean(name)]; n != nil && !n.dir {
		return append([]byte{}, n.data...)
	}
	return nil
}
