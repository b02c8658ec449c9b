package raft

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/qlogd/qlogd/internal/vfs"
)

// deleter deletes the files that raft-wal has no more use for, one after the other
// in the background. raft-wal would do it while it takes no entry: behind the first
// checkpoint in a long time those are many, and each takes milliseconds. They are
// deleted in pieces, with rests in which the disk is left to the log.
//
// Nothing depends on when a file goes, but for Shed, which waits for it. raft-wal
// asks for it when its metadata without the file are durable, and gives no name
// twice; a file that outlives the process, whole or not, is deleted at the next
// open (mendLog). So one sync of the directory does for all that go together. It
// gives their room back, and keeps a power cut from bringing back what was shed.
type deleter struct {
	fsys   vfs.FS
	dir    string
	piece  int64 // vfs.DrainPiece; less in tests
	logger *slog.Logger

	mu      sync.Mutex
	names   []string      // to go
	idle    chan struct{} // closed when all have gone; nil: they have
	waiting int           // who wait for it: there are no rests then
}

func newDeleter(o Options) *deleter {
	return &deleter{fsys: o.FS, dir: o.Dir, piece: vfs.DrainPiece, logger: o.Logger}
}

// put has a file deleted.
func (d *deleter) put(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names = append(d.names, name)
	if d.idle == nil {
		d.idle = make(chan struct{})
		go d.run()
	}
}

func (d *deleter) run() {
	for names := d.take(); len(names) > 0; names = d.take() {
		for _, name := range names {
			if err := d.remove(join(d.dir, name)); err != nil {
				d.logger.Warn("a file was not deleted that the Raft log has no more use for; the next start tries again", "file", name, "error", err)
			}
		}
		if err := d.fsys.SyncDir(d.dir); err != nil {
			d.logger.Warn("files that were deleted from the Raft log may be there again after a power cut, until the next start", "error", err)
		}
	}
}

func (d *deleter) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := d.names
	d.names = nil
	if len(names) == 0 {
		close(d.idle)
		d.idle = nil
	}
	return names
}

func (d *deleter) remove(name string) error {
	// An aid: where it fails, the file goes in one piece.
	if f, err := d.fsys.OpenReadWrite(name); err == nil {
		_ = errors.Join(vfs.Drain(f, d.piece, d.rest), f.Close())
	}
	return d.fsys.Remove(name)
}

// rest leaves the disk to others after a piece.
func (d *deleter) rest(took time.Duration) {
	d.mu.Lock()
	hurry := d.waiting > 0
	d.mu.Unlock()
	if !hurry {
		time.Sleep(vfs.DrainRest(took))
	}
}

// wait returns when what was put has gone, durably, or could not be deleted.
func (d *deleter) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idle == nil {
		return
	}
	idle := d.idle
	d.waiting++
	d.mu.Unlock()
	<-idle
	d.mu.Lock()
	d.waiting--
}
