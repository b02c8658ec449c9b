package wire

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxChanges bounds a JSON Patch; a longer one is given as one replacement.
const maxChanges = 1000

var null = jsontext.Value("null")

// Pointer escapes a name for a JSON pointer.
var Pointer = strings.NewReplacer("~", "~0", "/", "~1")

// jsonChange is one place in which two JSON values differ; nil where there is no value.
type jsonChange struct {
	path          []string
	before, after jsontext.Value
}

// compareJSON returns the differences between two JSON values, at most maxChanges+1: objects are
// compared member by member in the order of their names, lists element by element if lists is
// set. Elements that only before has come last first, so that they can be removed in order.
func compareJSON(before, after jsontext.Value, lists bool) (out []jsonChange) {
	var walk func(path []string, a, b jsontext.Value)
	walk = func(path []string, a, b jsontext.Value) {
		var x, y map[string]jsontext.Value
		var xs, ys []jsontext.Value
		switch {
		case len(out) > maxChanges:
		case a.Kind() == '{' && b.Kind() == '{' && bothInto(a, b, &x, &y):
			names := maps.Clone(x)
			maps.Copy(names, y)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				walk(append(slices.Clone(path), name), x[name], y[name])
			}
		case lists && a.Kind() == '[' && b.Kind() == '[' && bothInto(a, b, &xs, &ys):
			at := func(i int) []string { return append(slices.Clone(path), strconv.Itoa(i)) }
			both := min(len(xs), len(ys))
			for i := range both {
				walk(at(i), xs[i], ys[i])
			}
			for i := len(xs) - 1; i >= both; i-- {
				walk(at(i), xs[i], nil)
			}
			for i := both; i < len(ys); i++ {
				walk(at(i), nil, ys[i])
			}
		case !equalJSON(a, b):
			out = append(out, jsonChange{path, a.Clone(), b.Clone()})
		}
	}
	walk(nil, before, after)
	return out
}

// bothInto decodes two values into the same type.
func bothInto[T any](a, b jsontext.Value, x, y *T) bool {
	return Unmarshal(a, x) == nil && Unmarshal(b, y) == nil
}

// equalJSON reports whether two values mean the same; numbers are compared as they are
// written. nil, a value that is missing, is not null.
func equalJSON(a, b jsontext.Value) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	ints, floats := jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)
	a, b = a.Clone(), b.Clone()
	_, _ = a.Canonicalize(ints, floats), b.Canonicalize(ints, floats) // both are valid
	return bytes.Equal(a, b)
}

// Patch returns the JSON Patch (RFC 6902) that turns before into after, with the old values.
func Patch(before, after jsontext.Value) (out []Change) {
	found := compareJSON(before, after, true)
	if len(found) > maxChanges {
		found = []jsonChange{{nil, before, after}}
	}
	for _, c := range found {
		path := ""
		for _, name := range c.path {
			path += "/" + Pointer.Replace(name)
		}
		op := "replace"
		switch {
		case c.before == nil:
			op = "add"
		case c.after == nil:
			op = "remove"
		}
		out = append(out, Change{Op: op, Path: path, Value: c.after, Old: c.before})
	}
	return out
}

// Differences returns the members in which two JSON objects differ. A missing member is null.
func Differences(before, after jsontext.Value) (out []Difference) {
	for _, c := range compareJSON(before, after, false) {
		d := Difference{Path: strings.Join(c.path, "."), Before: null, After: null}
		if c.before != nil {
			d.Before = c.before
		}
		if c.after != nil {
			d.After = c.after
		}
		if !equalJSON(d.Before, d.After) {
			out = append(out, d)
		}
	}
	return out
}
