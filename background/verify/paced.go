package verify

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/log/vfs"
)

const (
	// atOnce is how many bytes are read before the rate counts.
	atOnce    = 1 << 20
	busyPause = 500 * time.Millisecond
)

// paced is a file system whose files are read at a bounded rate until ctx ends, and not at all
// while the node is busy.
type paced struct {
	vfs.FS
	ctx  context.Context
	rate *rate.Limiter
	busy func() bool
}

// OpenRead opens a file for reading at the rate.
func (p *paced) OpenRead(name string) (vfs.File, error) {
	f, err := p.FS.OpenRead(name)
	if err != nil {
		return nil, err
	}
	return &pacedFile{f, p}, nil
}

type pacedFile struct {
	vfs.File
	pace *paced
}

// ReadAt returns no bytes once ctx has ended: they would count as read.
func (f *pacedFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	if err := f.pace.wait(n); err != nil {
		return 0, err
	}
	return n, err
}

// wait returns when n more bytes may have been read.
func (p *paced) wait(n int) error {
	for p.busy() {
		select {
		case <-time.After(busyPause):
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
	for ; n > 0; n -= atOnce {
		if err := p.rate.WaitN(p.ctx, min(n, atOnce)); err != nil {
			return err
		}
	}
	return p.ctx.Err()
}
