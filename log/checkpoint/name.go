package checkpoint

import (
	"strconv"
	"strings"
)

// ParseName is the inverse of Meta.Name. ok is false for whatever is not exactly
// a checkpoint's name.
func ParseName(name string) (index, term uint64, ok bool) {
	const digits = 20
	rest, ok := strings.CutSuffix(name, suffix)
	if !ok || len(rest) != 2*digits+1 {
		return 0, 0, false
	}
	index, err := strconv.ParseUint(rest[:digits], 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if term, err = strconv.ParseUint(rest[digits+1:], 10, 64); err != nil {
		return 0, 0, false
	}
	// Signs and other ways to write a number do not come back as they were.
	m := Meta{Index: index, Term: term}
	return index, term, m.Name() == name
}
