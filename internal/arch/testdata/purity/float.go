package purity

import "math"

const half = 0.5 // want: has a float

type share float32 // want: has a float

func floats(n int64) int64 {
	x := float64(n) // want: has a float
	y := int64(1e3) // want: has a float
	z := math.MaxInt64 - 1
	return int64(x*2) + y + int64(z) // want: has a float
}

func hidden(f func() share) bool { // want: has a float
	return f() > 0 // want: has a float
}

const million = 1_000_000

func fixed(n int64) int64 { return n * 1_500_000 / million }
