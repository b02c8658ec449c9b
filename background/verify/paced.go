package verify

import (
	"context"

	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/log/vfs"
)

// paced is a file system whose files are read at a pace, until ctx ends.
type paced struct {
	vfs.FS
	ctx  context.Context
	pace *loop.Pace
}

// OpenRead opens a file for reading at the pace.
func (p *paced) OpenRead(name string) (vfs.File, error) {
	f, err := p.FS.OpenRead(name)
	if err != nil {
		return nil, err
	}
	return &pacedFile{f, p}, nil
}

type pacedFile struct {
	vfs.File
	*paced
}

// ReadAt returns no bytes once ctx has ended: they would count as read.
func (f *pacedFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	if err := f.pace.Wait(f.ctx, int64(n)); err != nil {
		return 0, err
	}
	return n, err
}
