// Package arch tests the structure of the repository: imports run one way
// through the rooms, and deciding and folding are pure (I5).
package arch
