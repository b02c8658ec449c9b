package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/qlogd/qlogd/log/vfs"
)

// ErasedFile tells up to which index of the event log this directory has carried
// out what `erased` events tell. It is derived: where it is missing, or says less
// than is true, the log is gone through again from there, and what was erased
// before is passed over.
//
// Invariant: every content that an event up to that index names as erased is
// overwritten in this directory's event log. So it is put back when older
// segments are put in place.
const ErasedFile = "erased.json"

const erasedFormat = 1

type erased struct {
	Format    int    `json:"format"`
	UpToIndex uint64 `json:"up_to_index"`
}

// ReadErased returns what a directory's ErasedFile says; not known where there is
// none that this program can read.
func ReadErased(fsys vfs.FS, dir string) (upTo uint64, known bool, err error) {
	b, err := vfs.ReadFile(fsys, Path(dir, ErasedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	var e erased
	if json.Unmarshal(b, &e) != nil || e.Format != erasedFormat {
		return 0, false, nil
	}
	return e.UpToIndex, true, nil
}

// WriteErased writes it, durably.
func WriteErased(fsys vfs.FS, dir string, upTo uint64) error {
	b, err := json.Marshal(erased{erasedFormat, upTo})
	if err == nil {
		err = vfs.WriteFile(fsys, Path(dir, ErasedFile), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", ErasedFile, err)
	}
	return nil
}
