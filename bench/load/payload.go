package load

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"sync"
)

// MinSize is the smallest payload: it begins with where it comes
// from and when.
//
//	0  when it was sent, or should have been: int64, nanoseconds of the Run's clock
//	8  the Run it is of: uint64, random
//	16 its number in the Run: uint64, from 0
//	24 random bytes
const MinSize = 24

// poolSize is what random bytes are cut from: more than any compressor's window.
const poolSize = 4 << 20

// pool is made at its first use: programs that link this rarely put load on
// anything.
var pool = sync.OnceValue(func() []byte {
	b := make([]byte, poolSize)
	_, _ = rand.Read(b) // never fails
	return b
})

// maker makes one producer's messages. What it returns is overwritten by the
// next call.
type maker struct {
	run   uint64
	keys  uint64
	pool  []byte
	at    int // where in the pool it reads
	batch []Message
}

func newMaker(run uint64, size, batch, keys, producer int) *maker {
	m := &maker{run: run, keys: uint64(keys), pool: pool(),
		at: producer * 7919 % (poolSize / 2), batch: make([]Message, batch)}
	buf := make([]byte, size*batch)
	for i := range m.batch {
		m.batch[i].Payload = buf[i*size : (i+1)*size : (i+1)*size]
	}
	return m
}

// next returns n messages numbered from seq on, stamped with at.
func (m *maker) next(n int, seq uint64, stamp int64) []Message {
	for i := range n {
		p := m.batch[i].Payload
		binary.LittleEndian.PutUint64(p, uint64(stamp))
		binary.LittleEndian.PutUint64(p[8:], m.run)
		binary.LittleEndian.PutUint64(p[16:], seq+uint64(i))
		for rest := p[MinSize:]; len(rest) > 0; {
			if m.at >= poolSize {
				m.at = int(seq) % 4099 // else the second time around would be the first again
			}
			c := copy(rest, m.pool[m.at:])
			rest, m.at = rest[c:], m.at+c
		}
		if m.keys > 0 {
			m.batch[i].Key = "k" + strconv.FormatUint((seq+uint64(i))%m.keys, 10)
		}
	}
	return m.batch[:n]
}

// origin reads a payload's beginning. ok is false where it is not of this Run.
func origin(run uint64, p []byte) (stamp int64, seq uint64, ok bool) {
	if len(p) < MinSize || binary.LittleEndian.Uint64(p[8:]) != run {
		return 0, 0, false
	}
	return int64(binary.LittleEndian.Uint64(p)), binary.LittleEndian.Uint64(p[16:]), true
}
