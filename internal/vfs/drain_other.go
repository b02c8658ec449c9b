//go:build !linux

package vfs

// sole is not known here.
func (f osFile) sole(uint64) bool { return false }
