package checkpoint

// Keep is how many checkpoints are kept at most.
const Keep = 16

// Thin picks the checkpoints that may go, so that at most keep stay: always the
// newest two (a start must survive the loss of one) and the oldest, and of the
// others those that lie most evenly over the log, so that a fold of the past
// (replay --from, at=) finds one near wherever it starts. metas is newest first,
// as List returns them.
//
// Each time one more has been written, the one goes whose going leaves the
// smallest hole. That keeps an even spread by itself: the history of which were
// kept need not be stored.
func Thin(metas []Meta, keep int) []Meta {
	keep = max(keep, 2)
	left := append([]Meta(nil), metas...)
	var gone []Meta
	for len(left) > keep {
		// The oldest is always kept while there is a middle to choose from.
		at, hole := len(left)-1, uint64(0)
		for i := 2; i < len(left)-1; i++ {
			if h := left[i-1].HeadIndex - left[i+1].HeadIndex; at == len(left)-1 || h < hole {
				at, hole = i, h
			}
		}
		gone = append(gone, left[at])
		left = append(left[:at], left[at+1:]...)
	}
	return gone
}
