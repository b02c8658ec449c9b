package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is what the nemesis does.
type Kind string

// What can be done, and what ends it.
const (
	// unsynced bytes are lost, or some of them; then it starts again
	CutPower   Kind = "cut power"
	Kill       Kind = "kill"         // the process ends, the files stay
	CutInWrite Kind = "cut in write" // the power fails in one of the next writes or syncs
	CutAll     Kind = "cut all"      // the power of all nodes
	Restart    Kind = "restart"      // a clean stop and start
	Isolate    Kind = "isolate"      // no line to the others, both ways
	Deafen     Kind = "deafen"       // hears nothing, is heard
	Mute       Kind = "mute"         // hears, is not heard
	CutLine    Kind = "cut line"     // one line, both ways
	CutWay     Kind = "cut way"      // one line, one way
	SlowLines  Kind = "slow lines"   // of one node
	SlowApply  Kind = "slow apply"   // a node takes long for each entry
	StallDisk  Kind = "stall disk"   // the Raft log's writes take seconds
	Clock      Kind = "clock"        // a wall clock jumps
	Transfer   Kind = "transfer"     // leadership is handed over
	Checkpoint Kind = "checkpoint"   // every node writes one
	Wipe       Kind = "wipe"         // the data directory is emptied
	Copy       Kind = "copy"         // of a node's disk, for
	PutBack    Kind = "put back"     // an old copy in place of the disk
	LoseStore  Kind = "lose store"   // a part of the Raft store is deleted
	Flip       Kind = "flip a byte"  // of a node's files
	// from the cluster, for ever; it comes back with an empty directory
	Remove    Kind = "remove"
	FullDisk  Kind = "full disk"  // a node has no room for a while
	FailWrite Kind = "fail write" // one of the next writes or syncs fails
)

// weights say how often each comes.
var weights = []struct {
	kind Kind
	n    int
}{
	{CutPower, 14}, {Kill, 8}, {CutInWrite, 8}, {CutAll, 4}, {Restart, 8},
	{Isolate, 10}, {Deafen, 4}, {Mute, 4}, {CutLine, 5}, {CutWay, 5},
	{SlowLines, 4}, {SlowApply, 3}, {StallDisk, 4}, {Clock, 4}, {Transfer, 5}, {Checkpoint, 3},
	{Wipe, 6}, {PutBack, 6}, {LoseStore, 3}, {FailWrite, 4}, {Flip, 5}, {Remove, 4}, {FullDisk, 3},
}

// Step is one thing that the nemesis does.
type Step struct {
	At   time.Duration // since the clients began
	Kind Kind
	// Whom: 0 to 2 a node, -1 the leader of then, -2 somebody who follows, by
	// Dice; -3 the first who does, -4 the last.
	Whom int
	For  time.Duration // until it ends
	Dice uint64        // for what else there is to choose
	// Force takes data away whatever else is wrong.
	Force bool
}

func (s Step) String() string {
	whom := fmt.Sprint("n", s.Whom+1)
	switch s.Whom {
	case -1:
		whom = "the leader"
	case -2, -3, -4:
		whom = "a follower"
	}
	return fmt.Sprintf("%6.2fs %s, %s, for %.2fs (%x)", s.At.Seconds(), s.Kind, whom,
		s.For.Seconds(), s.Dice)
}

// Plan is what a seed brings.
type Plan struct {
	Seed  uint64
	Steps []Step
	Until time.Duration // the clients' time
	Sizes Sizes
}

// Sizes are small, so that segments end, checkpoints come, the Raft log is
// truncated and nodes must fetch within a run.
type Sizes struct {
	Segment    int64 // of the event log
	Checkpoint uint64
	Trailing   uint64
}

// sizes are what is drawn from.
var sizes = []Sizes{
	{8 << 10, 25, 6}, {8 << 10, 25, 6}, {4 << 10, 10, 2}, {32 << 10, 100, 20}, {8 << 10, 15, 60},
}

func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %v of work, sizes %+v\n", p.Seed, p.Until, p.Sizes)
	for _, s := range p.Steps {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

// NewPlan draws a plan. Each has at least one partition, one crash and one
// restart.
func NewPlan(seed uint64, steps int) Plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := Plan{Seed: seed, Sizes: sizes[r.IntN(len(sizes))]}
	total := 0
	for _, w := range weights {
		total += w.n
	}
	draw := func() Kind {
		n := r.IntN(total)
		for _, w := range weights {
			if n -= w.n; n < 0 {
				return w.kind
			}
		}
		panic("unreachable")
	}
	kinds := []Kind{
		[]Kind{Isolate, Deafen, Mute, CutLine, CutWay}[r.IntN(5)],
		[]Kind{CutPower, Kill, CutInWrite, CutAll}[r.IntN(4)],
		[]Kind{Restart, CutPower}[r.IntN(2)],
	}
	for len(kinds) < steps {
		kinds = append(kinds, draw())
	}
	r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	if i := slices.Index(kinds, PutBack); i >= 0 { // of something, some time before
		kinds = slices.Insert(kinds, r.IntN(i+1), Copy)
	}
	at := time.Duration(0)
	for _, k := range kinds {
		at += ms(r, 200, 4000)
		s := Step{At: at, Kind: k, Whom: r.IntN(3), Dice: r.Uint64()}
		switch n := r.IntN(10); {
		case n < 4:
			s.Whom = -1
		case n < 6:
			s.Whom = -2
		}
		s.For = ms(r, 300, 6000)
		if r.IntN(4) == 0 {
			s.For = ms(r, 1, 300)
		}
		p.Steps = append(p.Steps, s)
	}
	slices.SortStableFunc(p.Steps, func(a, b Step) int { return int(a.At - b.At) })
	p.Until = at + ms(r, 500, 3000)
	return p
}

func ms(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(to-from)) * time.Millisecond
}
