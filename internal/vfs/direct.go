package vfs

import (
	"errors"
	"unsafe"
)

// Directs is an FS that can write past the operating system's cache.
type Directs interface {
	FS
	// OpenDirect opens an existing file so that a WriteAt is durable when it
	// returns, without a Sync: the bytes, that is, within the file's size, where
	// nothing that was written otherwise is still to be synced; neither its size
	// nor its name. Offsets and lengths are multiples of DirectBlock, and the bytes lie in memory that
	// Aligned made. It fails with errors.ErrUnsupported where the file system
	// can't, which a WriteAt may be the first to find out.
	OpenDirect(name string) (File, error)
}

var (
	_ Directs = OS{}
	_ Directs = (*Mem)(nil)
)

// DirectBlock is what a direct write is made of: the largest block that disks
// have, and a page.
const DirectBlock = 4096

// Aligned returns n bytes of memory that a direct write can be made of.
func Aligned(n int) []byte {
	b := make([]byte, n+DirectBlock-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (DirectBlock - 1)
	return b[skip : skip+n : skip+n]
}

// aligned refuses what a direct write can't be.
func aligned(p []byte, off int64) error {
	if off%DirectBlock != 0 || len(p)%DirectBlock != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%DirectBlock != 0 {
		return errors.New("vfs: a direct write of a part of a block")
	}
	return nil
}
