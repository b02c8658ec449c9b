package vfs

import "time"

const (
	// DrainPiece is how much of a file is freed at once: it holds up no write for
	// long. See Drain.
	DrainPiece = 1 << 20
	// drainShare is how much of the time is spent on freeing: one part in so many.
	drainShare = 4
	// drainRest bounds a rest: on a slow disk, too, what is freed has to keep up
	// with what is written.
	drainRest = 4 * time.Millisecond
)

// DrainRest tells how long the disk is left to others after a piece.
func DrainRest(took time.Duration) time.Duration { return min((drainShare-1)*took, drainRest) }

// Drain frees all but the first piece of a file that is to be removed, piece by
// piece from its end, and calls rest after each with how long it took. Where the
// file system tells the disk what it frees, as ext4 does that is mounted with
// discard, all writes to that disk wait as long as a removal takes: some 8 ms for
// 32 MiB were measured.
//
// Whatever is to be found under the file's name after a power cut must have been
// made to be so before, by SyncDir: a file system may free the pieces first. A file
// that has another name, a backup's it may be, or that somebody else has open, is
// left whole.
func Drain(f File, piece int64, rest func(took time.Duration)) error {
	if s, ok := f.(soler); ok && !s.sole(1) {
		return nil
	}
	return drain(f, piece, rest)
}

func drain(f File, piece int64, rest func(took time.Duration)) error {
	size, err := f.Size()
	for err == nil && size > piece {
		began := time.Now()
		size = (size - 1) / piece * piece
		if err = f.Truncate(size); err == nil {
			rest(time.Since(began))
		}
	}
	return err
}

// Release closes files whose names were removed, durably. What the large ones take
// up is freed in the background, as Drain does it: the last one to close a file that
// has no name frees all of it at once. Not where somebody else may be reading it.
func Release(files ...File) {
	var large []File
	for _, f := range files {
		if size, err := f.Size(); err == nil && size > DrainPiece && nameless(f) {
			large = append(large, f)
			continue
		}
		_ = f.Close()
	}
	if len(large) == 0 {
		return
	}
	go func() {
		for _, f := range large {
			_ = drain(f, DrainPiece, func(took time.Duration) { time.Sleep(DrainRest(took)) })
			_ = f.Close()
		}
	}()
}

// soler is a file that can tell whether it has so many names, and nobody else has it
// open, here or in another process.
type soler interface{ sole(names uint64) bool }

// nameless tells of a file that was removed whether nobody else can have it.
func nameless(f File) bool {
	s, ok := f.(soler)
	return ok && s.sole(0)
}
