package purity

import (
	"maps"
	"slices"
)

func order[M ~map[string]int](m map[string]int, g M) (out []string) {
	for k := range m { // want: goes over a map in no order
		out = append(out, k)
	}
	for k := range g { // want: goes over a map in no order
		out = append(out, k)
	}
	for k := range maps.Keys(m) { // want: goes over a map in no order: maps.Keys
		out = append(out, k)
	}
	out = slices.Collect(maps.Keys(m)) // want: goes over a map in no order: maps.Keys
	// order does not matter:
	for k := range m { // want: goes over a map in no order
		out = append(out, k)
	}

	n := 0
	// order does not matter: a sum is the same in any.
	for _, v := range m {
		n += v
	}
	for _, v := range m { // order does not matter: a sum is the same in any.
		n += v
	}
	for i := range out {
		n += i
	}
	return slices.Sorted(maps.Keys(m))
}
