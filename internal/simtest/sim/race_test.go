//go:build race

package sim

// The race detector makes a run several times as long.
const seedsByDefault = 12
