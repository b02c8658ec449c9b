// Package scrub finds damage in a node's files before they are needed, and repairs it.
//
// Run reads checkpoints, and segments with their indexes, slowly and in rounds. Damage that another
// reader meets first is reported with Found. A file that failed its check is logged once, and
// counted until it is repaired: a sealed segment by a copy of another node's, an index from its
// segment, a checkpoint by newer ones. The newest segment, which is still written to, cannot be
// repaired.
package scrub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Options are what a Scrubber works with.
type Options struct {
	Log     *log.Log // set before Run
	FS      vfs.FS
	DataDir string
	Rate    int64 // bytes read a second; 0: nothing is read, and only what readers find is repaired
	// Busy reports whether the node is overloaded: nothing is read meanwhile.
	Busy func() bool
	// Segment replaces a sealed segment by a copy of another node's.
	Segment func(ctx context.Context, sealed log.SegmentInfo) error
	// Checkpoint replaces a checkpoint by a newer one.
	Checkpoint func(ctx context.Context, name string) error
	Registry   *prometheus.Registry
	Logger     *slog.Logger
}

// Scrubber checks and repairs the files of one node.
type Scrubber struct {
	Options
	repairs *loop.Loop

	mu      sync.Mutex
	damaged map[string]datadir.Damage // by name
	round   datadir.Round             // the last one
	pace    *loop.Pace
	total   int64 // bytes read; only Run uses it

	metrics struct {
		damaged      *prometheus.GaugeVec
		found, fixed *prometheus.CounterVec
		bytes        prometheus.Counter
		ended        prometheus.Gauge
	}
}

// The kinds of files, which are also their names' ends.
var kinds = map[string]string{".seg": "segment", ".idx": "index", ".ckpt": "checkpoint"}

const (
	// roundEvery is the least time between the starts of two rounds: a small log is not read all
	// the time.
	roundEvery  = 10 * time.Minute
	repairAgain = 15 * time.Second
	// burstsPerSecond says how much is read at once: more of them would be many short sleeps.
	burstsPerSecond = 20
)

// New returns a Scrubber.
func New(o Options) *Scrubber {
	s := &Scrubber{
		Options: o, repairs: loop.New(time.Hour, repairAgain),
		damaged: map[string]datadir.Damage{},
		pace:    loop.NewPace(o.Rate, max(1, o.Rate/burstsPerSecond), o.Busy),
	}
	kind := []string{"kind"}
	m := &s.metrics
	m.damaged = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "qlogd_damaged_files",
		Help: "Files that failed their check and are not repaired."}, kind)
	m.found = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "qlogd_damage_found_total",
		Help: "Files that failed their check."}, kind)
	m.fixed = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "qlogd_damage_repaired_total",
		Help: "Damaged files that were repaired."}, kind)
	m.bytes = prometheus.NewCounter(prometheus.CounterOpts{Name: "qlogd_scrub_bytes_total",
		Help: "Bytes read by the scrub."})
	m.ended = prometheus.NewGauge(prometheus.GaugeOpts{Name: "qlogd_scrub_round_end_seconds",
		Help: "When the scrub had last read everything, as a Unix time; 0: not since the start."})
	for _, k := range kinds {
		m.damaged.WithLabelValues(k)
		m.found.WithLabelValues(k)
		m.fixed.WithLabelValues(k)
	}
	o.Registry.MustRegister(m.damaged, m.found, m.fixed, m.bytes, m.ended)
	return s
}

// Found records damage that a reader has found, and starts its repair at once.
func (s *Scrubber) Found(c *log.CorruptionError) { s.found(c.Segment, c) }

func (s *Scrubber) found(name string, why error) {
	kind, ok := kinds[path.Ext(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.damaged[name]; known || !ok {
		return
	}
	dir := datadir.LogDir
	if kind == "checkpoint" {
		dir = datadir.CheckpointDir
	}
	d := datadir.Damage{File: path.Join(dir, name), Kind: kind, Detail: why.Error(),
		Since: time.Now().UnixMilli()}
	s.damaged[name] = d
	s.metrics.found.WithLabelValues(kind).Inc()
	s.metrics.damaged.WithLabelValues(kind).Inc()
	s.Logger.Error("file is damaged", "file", d.File, "kind", kind, "error", why)
	s.repairs.Wake()
}

// resolved records that a file passed its check, was repaired, or is gone.
func (s *Scrubber) resolved(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.damaged[name]
	if !ok {
		return
	}
	delete(s.damaged, name)
	s.metrics.damaged.WithLabelValues(d.Kind).Dec()
	s.metrics.fixed.WithLabelValues(d.Kind).Inc()
	s.Logger.Info("file is no longer damaged", "file", d.File, "kind", d.Kind)
}

// Health returns what is known of the files.
func (s *Scrubber) Health() datadir.Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	damaged := slices.SortedFunc(maps.Values(s.damaged), func(a, b datadir.Damage) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.File, b.File))
	})
	return datadir.Health{
		Damaged: damaged[:min(len(damaged), datadir.MaxDamaged)], Round: s.round,
	}
}

// Run reads and repairs until ctx ends.
func (s *Scrubber) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() {
		s.repairs.Run(ctx, s.repairAll, s.Logger.Warn, "damaged files are not repaired, retrying")
	})
	for s.Rate > 0 && ctx.Err() == nil {
		began := time.Now()
		if err := s.readAll(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("scrub failed, retrying", "error", err)
		}
		loop.Sleep(ctx, roundEvery-time.Since(began))
	}
}

// readAll reads all files once.
func (s *Scrubber) readAll(ctx context.Context) error {
	began, before := time.Now(), s.total
	if err := s.readCheckpoints(ctx); err != nil {
		return err
	}
	segments := s.Log.Segments()
	if len(segments) > 0 {
		// From a random one on, so that a node that restarts often still reads all of a long log.
		at := rand.IntN(len(segments))
		segments = slices.Concat(segments[at:], segments[:at])
	}
	for _, seg := range segments {
		read := int64(0)
		err := s.Log.Check(ctx, seg.First, func(done, _ int64) {
			s.read(ctx, done-read)
			read = done
		})
		switch {
		case err == nil:
			s.resolved(seg.Name)
			s.resolved(seg.SideFile)
		case log.IsDamage(err), errors.Is(err, log.ErrGone): // the log has reported it
		default:
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round = datadir.Round{Ended: time.Now().UnixMilli(),
		TookMS: time.Since(began).Milliseconds(), Bytes: s.total - before}
	s.metrics.ended.SetToCurrentTime()
	return nil
}

func (s *Scrubber) readCheckpoints(ctx context.Context) error {
	dir := datadir.Path(s.DataDir, datadir.CheckpointDir)
	metas, bad, err := checkpoint.List(s.FS, dir)
	if err != nil {
		return err
	}
	for _, m := range metas {
		_, body, err := checkpoint.Open(s.FS, dir, m.Name())
		if err == nil {
			_, err = io.Copy(reading(func(n int) error { s.read(ctx, int64(n)); return ctx.Err() }), body)
			body.Close()
		}
		if err != nil {
			bad = append(bad, checkpoint.Bad{Name: m.Name(), Err: err})
			continue
		}
		s.resolved(m.Name())
	}
	for _, b := range bad {
		_, wrong := errors.AsType[*checkpoint.CorruptError](b.Err)
		if wrong || errors.Is(b.Err, syscall.EIO) {
			s.found(b.Name, b.Err)
		}
	}
	return ctx.Err()
}

// reading is a Writer that is called with the number of bytes.
type reading func(n int) error

func (r reading) Write(b []byte) (int, error) { return len(b), r(len(b)) }

// read records that bytes were read, and sleeps as long as the pace requires, or until ctx ends.
func (s *Scrubber) read(ctx context.Context, n int64) {
	s.metrics.bytes.Add(float64(n))
	s.total += n
	_ = s.pace.Wait(ctx, n)
}

// repairAll repairs what it can, the newest first: later segments list what is erased in one.
func (s *Scrubber) repairAll(ctx context.Context) (err error) {
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.damaged))
	s.mu.Unlock()
	for _, name := range slices.Backward(names) {
		if failed := s.repair(ctx, name); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, failed))
		} else {
			s.resolved(name)
		}
	}
	return err
}

func (s *Scrubber) repair(ctx context.Context, name string) error {
	if checkpoint.IsName(name) {
		return s.Checkpoint(ctx, name)
	}
	if first, ok := log.ParseSideFileName(name); ok {
		err := s.Log.Check(ctx, first, nil)
		c, wrong := errors.AsType[*log.CorruptionError](err)
		if wrong && c.Segment == name || errors.Is(err, log.ErrGone) {
			return nil // it is written again, or of no use any more
		}
		return err
	}
	segments := s.Log.Segments()
	i := slices.IndexFunc(segments, func(g log.SegmentInfo) bool { return g.Name == name })
	switch {
	case i < 0:
		return nil // retention has deleted it
	case !segments[i].Sealed:
		return errors.New("the newest segment, which is still written to, cannot be replaced")
	}
	return s.Segment(ctx, segments[i])
}
