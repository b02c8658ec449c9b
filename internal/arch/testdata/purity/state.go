package purity

import (
	"errors"
	"fmt"
	"regexp"
)

var counter int // want: package-level variable counter is no constant table

var cache = map[string]int{} // want: package-level variable cache is written to

var pool = &struct{ n int }{} // want: package-level variable pool is no constant table

var compiled = regexp.MustCompile(`x`) // want: package-level variable compiled is no constant table

var hooks = [...]int{1, 2} // want: package-level variable hooks is written to

func init() { cache["a"] = 1 } // want: has an init function

func writes() *int { return &hooks[0] }

var errGone = errors.New("gone")

var errAlso = fmt.Errorf("also: %w", errGone)

var names = [...]string{"a", "b"}

var _ = []any{counter, pool, compiled, errAlso, names, clock, given, world, goroutines, floats, hidden, fixed, half, writes, share(0)} // want: has a float
