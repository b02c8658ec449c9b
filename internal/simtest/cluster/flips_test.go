package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
)

// TestFlips flips a bit of a stopped node's files, or cuts one of them, and starts
// the node again. What it shows then is right and whole, or it says what is
// damaged: it answers with an error, or refuses to start and names the file. With a wrong
// segment header it starts, and only says so. There is no other node to repair it from.
//
//	FLIPS: how often
//	FLIPS_SEED, FLIPS_FROM: repeat a run, from that trial on
func TestFlips(t *testing.T) {
	t.Parallel()
	trials := cluster.Number(t, "FLIPS", 0)
	if trials == 0 {
		t.Skip("a campaign: make flips")
	}
	seed := cluster.Number(t, "FLIPS_SEED", int(time.Now().UnixNano()&0xffffff))
	from := cluster.Number(t, "FLIPS_FROM", 0)
	f := &flips{n: cluster.Start(t, cluster.Options{NoVerify: true, Flags: []string{
		"--checkpoint-entries", "40", "--log-segment-bytes", "65536"}}), want: map[string]string{}}
	queue(t, f.n.Client(), "q", "")
	// One directory of a node that was stopped, and one of a node that was killed,
	// with entries behind its newest checkpoint.
	var bases []string
	for _, end := range []func(){f.n.Term, f.n.Kill9} {
		if !f.n.Running() {
			f.n.Restart()
		}
		f.produce(t, 150)
		end()
		bases = append(bases, filepath.Join(t.TempDir(), "base"))
		require.NoError(t, copySparse(f.n.Dir(), bases[len(bases)-1]))
		f.stages = append(f.stages, maps.Clone(f.want))
	}
	outcomes := map[string]int{}
	for i := from; i < from+trials; i++ {
		r := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
		f.n.Wipe()
		require.NoError(t, copySparse(bases[i%2], f.n.Dir()))
		f.want = f.stages[i%2]
		d := harm(t, r, f.n.Dir(), i/2)
		outcome, wrong := f.look(t, d)
		if f.n.Running() {
			f.n.Kill9()
		}
		if wrong != "" {
			outcome = "WRONG"
			t.Errorf("%s: %s\nrepeat it: FLIPS_SEED=%d FLIPS_FROM=%d FLIPS=1 make flips", d, wrong,
				seed, i)
		}
		outcomes[outcome]++
		outcomes[d.kind+" "+outcome]++
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(outcomes)) {
		list = append(list, fmt.Sprintf("%s %d", k, outcomes[k]))
	}
	t.Logf("figures: %d flips and cuts, FLIPS_SEED=%d: %s", trials, seed, strings.Join(list, ", "))
}

type flips struct {
	n      *cluster.Node
	want   map[string]string // payloads by id
	stages []map[string]string
}

func (f *flips) produce(t *testing.T, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(len(f.want))))
	for range n {
		text := fmt.Sprintf("%d-%s", len(f.want), strings.Repeat("x", r.IntN(2000)))
		got, err := f.n.Client().Produce(t.Context(), "q", client.JSON(text))
		require.NoError(t, err)
		f.want[got[0].ID] = fmt.Sprintf("%q", text)
	}
}

// damage is what was done to a file.
type damage struct{ kind, dir, file, how string }

func (d damage) String() string { return d.dir + "/" + d.file + " " + d.how }

const segmentHeader = "log/*.seg header"

// harm flips a bit of a file or cuts it, of each kind of files in turn.
func harm(t *testing.T, r *rand.Rand, dir string, i int) damage {
	t.Helper()
	kinds := map[string][]string{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "lock" {
			return err
		}
		kind := e.Name()
		if kind[0] >= '0' && kind[0] <= '9' {
			kind = filepath.Base(filepath.Dir(name)) + "/*" + filepath.Ext(name)
		}
		kinds[kind] = append(kinds[kind], name)
		if kind == "log/*.seg" {
			kinds[segmentHeader] = append(kinds[segmentHeader], name)
		}
		return nil
	})
	require.NoError(t, err)
	names := slices.Sorted(maps.Keys(kinds))
	kind := names[i%len(names)]
	name := kinds[kind][r.IntN(len(kinds[kind]))]
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	used := max(1, len(bytes.TrimRight(b, "\x00"))) // Raft's files end in zeros
	d := damage{kind: kind, dir: filepath.Base(filepath.Dir(name)), file: filepath.Base(name)}
	at := r.IntN(used)
	if kind == segmentHeader {
		at = r.IntN(log.SegmentHeaderSize)
	} else if r.IntN(3) == 0 {
		d.how = fmt.Sprintf("cut at %d of %d bytes", at, len(b))
		require.NoError(t, os.Truncate(name, int64(at)))
		return d
	}
	d.how = fmt.Sprintf("bit %d flipped at %d of %d bytes", at%8, at, used)
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{b[at] ^ 1<<(at%8)}, int64(at))
	require.NoError(t, errors.Join(err, file.Close()))
	return d
}

// look starts the node on a damaged directory. wrong is what must not be.
func (f *flips) look(t *testing.T, d damage) (outcome, wrong string) {
	before := len(f.n.Log())
	f.n.Launch()
	err := f.n.WaitReady()
	said := f.n.Log()[before:]
	if strings.Contains(said, "goroutine ") {
		return "", "a panic:\n" + said
	}
	if err != nil {
		switch {
		case f.n.Running():
			return "", err.Error()
		case d.kind == segmentHeader:
			return "", "it does not start:\n" + said
		case !strings.Contains(lastLine(said), d.file) &&
			!strings.Contains(lastLine(said), f.n.Dir()+"/"+d.dir):
			return "", "refused without the name of the file or its directory:\n" + said
		}
		return "refused", ""
	}
	once := f.n.Client(client.WithRetry(client.Retry{Attempts: 1}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := 0
	for id, payload := range f.want {
		m, err := once.Message(ctx, id)
		var e *client.Error
		switch {
		case errors.Is(err, client.ErrMessageNotFound):
			return "", fmt.Sprintf("message %s is lost", id)
		case errors.As(err, &e):
			errs++
		case err != nil:
			return "", err.Error()
		case m.Damaged && string(m.Payload) == "null":
			errs++
		case m.State != "ready" || string(m.Payload) != payload:
			return "", fmt.Sprintf("message %s is %s, %.60s", id, m.State, m.Payload)
		}
	}
	if q, err := once.Queue(ctx, "q"); err != nil || q.Stats.Depth != int64(len(f.want)) {
		return "", fmt.Sprintf("the queue says %+v, %v", q, err)
	}
	if _, err := once.Produce(ctx, "q", client.JSON("and on")); err != nil {
		return "", fmt.Sprintf("a write is refused: %v", err)
	}
	if d.kind == segmentHeader {
		c, err := once.Cluster(ctx)
		if err != nil || errs > 0 || len(c.Nodes[0].Damaged) != 1 ||
			c.Nodes[0].Damaged[0].File != "log/"+d.file {
			return "", fmt.Sprintf("%d messages cannot be read; the cluster says %+v, %v", errs, c, err)
		}
		return "reported", ""
	}
	if errs > 0 {
		return "reported", ""
	}
	return "whole", ""
}

// copySparse copies a directory without the zeros at its files' ends.
func copySparse(from, to string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		target := filepath.Join(to, strings.TrimPrefix(name, from))
		if err != nil || e.IsDir() {
			return errors.Join(err, os.MkdirAll(target, 0o700))
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		err = os.WriteFile(target, bytes.TrimRight(b, "\x00"), 0o600)
		return errors.Join(err, os.Truncate(target, int64(len(b))))
	})
}
