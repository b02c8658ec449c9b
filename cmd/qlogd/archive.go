package main

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/log"
)

// archiver brings sealed segments to the archive while the node runs: the
// leader writes, the others look how far it is, for none of them may delete
// what is not there yet.
type archiver struct {
	e     *engine
	store archive.Store // nil: there is no archive

	writing sync.Mutex // held by who writes to the archive

	mu    sync.Mutex
	since uint64 // guarded by mu: it begins behind this index
	upTo  uint64 // guarded by mu: all sealed segments from there up to this index are in it

	failed prometheus.Counter
}

// newArchiver returns the archiver of the archive that the settings name.
func newArchiver(e *engine, registry *prometheus.Registry) (*archiver, error) {
	a := &archiver{e: e}
	if e.c.Archive == "" {
		return a, nil
	}
	var err error
	if a.store, err = archive.NewStore(e.c.Archive); err != nil {
		return nil, err
	}
	a.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "qlogd_archive_failures_total", Help: "Looks at the archive that failed; meanwhile no history is deleted."})
	registry.MustRegister(a.failed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "qlogd_archive_index", Help: "All sealed segments up to this index are in the archive, as far as this node knows.",
	}, func() float64 { return float64(a.keepFrom() - 1) }))
	return a, nil
}

// keepFrom returns the first index that is not in the archive, and so must
// stay; without an archive there is none.
func (a *archiver) keepFrom() uint64 {
	if a.store == nil {
		return math.MaxUint64
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.upTo + 1
}

// has reports whether the segment that ends at an index is in the archive.
func (a *archiver) has(last uint64) bool {
	if a.store == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return last > a.since && last <= a.upTo
}

// run archives until the node ends.
func (a *archiver) run(ctx context.Context) {
	if a.store == nil {
		return
	}
	tick := time.NewTicker(a.e.c.ArchiveInterval)
	defer tick.Stop()
	var arch *archive.Archive
	told := ""
	for {
		var err error
		if arch == nil {
			arch, err = a.open(ctx)
		}
		if arch != nil {
			err = a.once(ctx, arch)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, archive.ErrNone) {
			a.failed.Inc()
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, archive.ErrNone): // a follower, before the leader has begun
			told = ""
		case err.Error() != told: // the same words once: it is tried again and again
			told = err.Error()
			a.e.logger.Warn("the log is not archived, and so nothing of it is deleted; trying again", "archive", a.store, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *archiver) open(ctx context.Context) (*archive.Archive, error) {
	if a.e.replica.Leader() {
		return archive.OpenFor(ctx, a.store, a.e.card.ClusterID, a.e.log.SegmentSize())
	}
	return archive.Open(ctx, a.store)
}

func (a *archiver) once(ctx context.Context, arch *archive.Archive) error {
	e := a.e
	var since, upTo uint64
	if e.replica.Leader() {
		a.writing.Lock()
		w, err := arch.Write(ctx, a.source())
		a.writing.Unlock()
		if w.Segments > 0 {
			e.logger.Info("log archived", "archive", arch, "segments", w.Segments, "checkpoints", w.Checkpoints, "bytes", w.Bytes, "up-to", w.UpTo)
		}
		if err != nil {
			return err
		}
		upTo = w.UpTo
	} else {
		there, err := arch.Segments(ctx)
		if err != nil {
			return err
		}
		since, upTo = archived(e.log.Segments(), there)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since, a.upTo = since, max(a.upTo, upTo)
	return nil
}

// archived returns behind which index an archive begins, and up to which one it
// has all of a log's sealed segments. What a log has before the archive's
// beginning the leader had deleted before there was one: nobody will ever bring
// it, so it is not to be waited for.
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
