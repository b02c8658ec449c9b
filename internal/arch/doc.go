// Package arch keeps the shape of the house: which folder may import which
// (docs/architecture.md, "The house"), and that deciding and folding are pure
// (I5). Both rules are tests, and testdata/ holds for each rule a file that it
// must catch.
package arch
