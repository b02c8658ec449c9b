package fetch

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"

	"github.com/qlogd/qlogd/log/vfs"
)

// The names in incoming/, besides the segments, side files and the checkpoint,
// which have the names that they get where they belong.
const (
	// readyFile is written last: all that it lists is there, whole, verified and
	// durable. Whoever finds it may put it in place, or leave it.
	readyFile = "READY"
	// installFile is readyFile under the name that it has once the first file is
	// about to be moved: from then on there is no way but forward.
	installFile = "INSTALL"
)

// The bytes of READY and INSTALL, version 1, numbers little-endian. docs/formats.md
// says the same.
//
//	0  8  magic "qlogdinc"
//	8  4  format version
//	12 4  length of the JSON
//	16    JSON: the manifest of what is in incoming/, and "replace"
//	end 4 CRC-32C of all before
const (
	readyMagic   = "qlogdinc"
	readyVersion = 1
	readyHead    = len(readyMagic) + 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ready is what READY says.
type ready struct {
	// Manifest lists the segments that are in incoming/, and no others; PrevIndex
	// and PrevChain are of the block before the first of them.
	Manifest
	// Replace: what there is of a log ends before PrevIndex, and goes. Otherwise
	// the segments before the first one stay.
	Replace bool `json:"replace"`
}

func (r *ready) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	b := append([]byte(nil), readyMagic...)
	b = binary.LittleEndian.AppendUint32(b, readyVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// errNotReady is of a file that says nothing: not a READY, or a damaged one.
var errNotReady = errors.New("not a usable " + readyFile)

func decodeReady(b []byte) (*ready, error) {
	le := binary.LittleEndian
	if len(b) < readyHead+4 || string(b[:len(readyMagic)]) != readyMagic {
		return nil, fmt.Errorf("%w: wrong magic or length", errNotReady)
	}
	if n := len(b) - 4; crc32.Checksum(b[:n], castagnoli) != le.Uint32(b[n:]) {
		return nil, fmt.Errorf("%w: wrong checksum", errNotReady)
	}
	// Behind the checksum: what is told of a version is true.
	if v := le.Uint32(b[8:]); v > readyVersion {
		return nil, fmt.Errorf("incoming files: format version %d is newer than this program's %d", v, readyVersion)
	}
	body := b[readyHead : len(b)-4]
	if uint64(le.Uint32(b[12:])) != uint64(len(body)) {
		return nil, fmt.Errorf("%w: wrong length", errNotReady)
	}
	r := &ready{}
	if err := decode(body, r, true); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	return r, nil
}

// readReady returns what the file called name in dir says; fs.ErrNotExist where
// there is none.
func readReady(fsys vfs.FS, dir, name string) (*ready, error) {
	b, err := vfs.ReadFile(fsys, path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	return decodeReady(b)
}

// there tells whether all files are there with their full sizes.
func (r *ready) there(fsys vfs.FS, dir string) (bool, error) {
	for _, s := range r.Segments {
		if ok, err := hasSize(fsys, path.Join(dir, s.Name), s.Size); !ok {
			return false, err
		}
	}
	return hasSize(fsys, path.Join(dir, r.Checkpoint.Name), r.Checkpoint.Size)
}

func hasSize(fsys vfs.FS, name string, size int64) (bool, error) {
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size == size, err
}
