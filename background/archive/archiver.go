package archive

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// ArchiverOptions are what an Archiver runs on.
type ArchiverOptions struct {
	Archive, DataDir string // directories
	ClusterID        string
	SegmentBytes     int64
	Segments         func() []log.SegmentInfo // the log's
	Leader           func() bool
	Every            time.Duration
	Registry         *prometheus.Registry
	Logger           *slog.Logger
}

// Archiver copies sealed segments to the archive while a node runs. The leader writes; the others
// read which segments are archived, because no node may delete a segment before that. A node
// without an archive has a nil Archiver.
type Archiver struct {
	o      ArchiverOptions
	failed prometheus.Counter

	writing sync.Mutex // held while something is written to the archive

	since atomic.Uint64 // the archive begins after this index
	upTo  atomic.Uint64 // all sealed segments from there up to this index are in it
}

// NewArchiver returns an Archiver; nil if the options name no archive.
func NewArchiver(o ArchiverOptions) *Archiver {
	if o.Archive == "" {
		return nil
	}
	a := &Archiver{o: o, failed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "qlogd_archive_failures_total",
		Help: "Failed archive runs; meanwhile no history is deleted.",
	})}
	o.Registry.MustRegister(a.failed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "qlogd_archive_index",
		Help: "All sealed segments up to this index are in the archive, as far as this node knows.",
	}, func() float64 { return float64(a.KeepFrom() - 1) }))
	return a
}

// KeepFrom returns the first index that is not in the archive, and so must stay.
func (a *Archiver) KeepFrom() uint64 {
	if a == nil {
		return math.MaxUint64
	}
	return a.upTo.Load() + 1
}

// Has reports whether the segment that ends at an index is in the archive.
func (a *Archiver) Has(last uint64) bool {
	return a != nil && last > a.since.Load() && last <= a.upTo.Load()
}

// Run archives until ctx ends.
func (a *Archiver) Run(ctx context.Context) {
	if a == nil {
		return
	}
	loop.New(a.o.Every, a.o.Every).Run(ctx, func(ctx context.Context) error {
		err := a.once(ctx)
		if err != nil && ctx.Err() == nil {
			a.failed.Inc()
		}
		return err
	}, a.o.Logger.With("archive", a.o.Archive).Warn,
		"archiving failed, retrying; no history is deleted meanwhile")
}

func (a *Archiver) once(ctx context.Context) error {
	if a.o.Leader() {
		if err := a.write(ctx); err != nil {
			return err
		}
	}
	arch, err := a.open()
	if arch == nil { // perhaps the leader has not created it yet
		return err
	}
	there, err := arch.Segments()
	if err != nil {
		return err
	}
	since, upTo := archived(a.o.Segments(), there)
	a.since.Store(since)
	a.upTo.Store(max(a.upTo.Load(), upTo))
	return nil
}

func (a *Archiver) write(ctx context.Context) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	arch, err := OpenFor(vfs.OS{}, a.o.Archive, a.o.ClusterID, a.o.SegmentBytes)
	if err != nil {
		return err
	}
	w, err := arch.Write(ctx, Source{
		FS: vfs.OS{}, LogDir: datadir.Path(a.o.DataDir, datadir.LogDir), Segments: a.o.Segments(),
		Checkpoints: datadir.Path(a.o.DataDir, datadir.CheckpointDir),
	}, nil)
	if w.Segments > 0 {
		a.o.Logger.Info("log archived", "archive", arch, "segments", w.Segments,
			"checkpoints", w.Checkpoints, "bytes", w.Bytes, "up_to", w.UpTo)
	}
	return err
}

// archived returns the index after which an archive begins, and the index up to which it has all of
// a log's sealed segments. History before the archive's beginning was deleted before the archive
// was created. It will never be archived, so retention does not wait for it.
func archived(mine, there []log.SegmentInfo) (since, upTo uint64) {
	chains := map[[32]byte]bool{}
	for _, s := range there {
		chains[s.Chain] = true
	}
	if len(there) > 0 {
		since = there[0].PrevIndex
	}
	for _, s := range mine {
		if !s.Sealed || s.Last > since && !chains[s.Chain] {
			break
		}
		upTo = s.Last
	}
	return since, upTo
}

// Erase removes erased contents from the archive, once they are erased in this node's log.
func (a *Archiver) Erase(ctx context.Context, refs []event.Ref) error {
	a.writing.Lock() // waits for a copy that may have been read before the erasure
	defer a.writing.Unlock()
	arch, err := a.open()
	if arch == nil {
		return err
	}
	n, err := arch.Erase(ctx, refs)
	if n > 0 {
		a.o.Logger.Info("contents erased in archived segments",
			"archive", a.o.Archive, "segments", n)
	}
	return err
}

// open opens the archive, nil if there is none yet.
func (a *Archiver) open() (*Archive, error) {
	arch, err := Open(vfs.OS{}, a.o.Archive)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	return arch, err
}

// Mount opens the archive together with the data directory; nil if there is none yet.
func (a *Archiver) Mount(ctx context.Context) (*FS, error) {
	arch, err := a.open()
	if arch == nil {
		return nil, err
	}
	return arch.Mount(ctx, a.o.DataDir)
}
