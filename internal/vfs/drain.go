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
// made to be so before, by SyncDir: a file system may free the pieces first.
func Drain(f File, piece int64, rest func(took time.Duration)) error {
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
