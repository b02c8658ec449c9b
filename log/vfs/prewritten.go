package vfs

// prewritten is how many zeros are written ahead. An fdatasync into blocks that were written
// before only writes data; into new blocks, of a sparse or an fallocated file, it also commits the
// file system's journal.
const prewritten = 256 << 10

var zeros [prewritten]byte

// Prewritten returns f, a file of a fixed size that is written from its beginning to its end and
// has only zeros after that. An append that reaches blocks which were never written writes zeros
// into the next ones too, unless it is large: the same sync covers both.
func Prewritten(f File, size int64) File { return &prewrittenFile{File: f, size: size} }

type prewrittenFile struct {
	File
	size   int64
	zeroed int64 // blocks up to this offset have been written, with data or zeros
}

func (f *prewrittenFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	end := off + int64(len(p))
	if err != nil || end <= f.zeroed || len(p) >= prewritten/2 {
		return n, err
	}
	f.zeroed = max(end, min(end+prewritten, f.size))
	// Only an optimization: where it fails, the file has holes.
	_, _ = f.File.WriteAt(zeros[:f.zeroed-end], end)
	return n, nil
}
