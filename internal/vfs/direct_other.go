//go:build !linux

package vfs

import (
	"errors"
	"io/fs"
)

// OpenDirect implements Directs.
func (OS) OpenDirect(name string) (File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}
