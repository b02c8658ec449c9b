// Package pages survives damaged bbolt files: bbolt trusts what is on their pages.
package pages

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"syscall"
)

// ErrDamaged is returned for a file whose bytes are wrong.
var ErrDamaged = errors.New("the file is damaged")

// Try runs do, which uses a bbolt file. On damaged pages bbolt panics, faults outside of the
// mapping, or writes beyond the largest file size: Try returns ErrDamaged instead.
func Try(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch v := recover().(type) {
		case nil:
		case runtime.Error: // it says where in the program's memory, and nothing of the file
			err = fmt.Errorf("%w: one of its pages leads nowhere", ErrDamaged)
		default:
			err = fmt.Errorf("%w: %v", ErrDamaged, v)
		}
	}()
	if err = do(); errors.Is(err, syscall.EFBIG) { // a page number far beyond the file's end
		err = fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	return err
}
