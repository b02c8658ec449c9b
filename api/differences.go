package api

import (
	"bytes"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

var null = jsontext.Value("null")

// differences tells in what two JSON values differ: objects member by member,
// anything else whole. A member that is not there is null.
func differences(path string, a, b jsontext.Value) []wire.Difference {
	out := []wire.Difference{}
	var x, y map[string]jsontext.Value
	if a.Kind() != '{' || b.Kind() != '{' || wire.Unmarshal(a, &x) != nil || wire.Unmarshal(b, &y) != nil {
		if !equalJSON(a, b) {
			out = append(out, wire.Difference{Path: path, Before: a, After: b})
		}
		return out
	}
	names := maps.Clone(x)
	maps.Copy(names, y)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		at := name
		if path != "" {
			at = path + "." + name
		}
		before, after := x[name], y[name]
		if before == nil {
			before = null
		}
		if after == nil {
			after = null
		}
		out = append(out, differences(at, before, after)...)
	}
	return out
}

// equalJSON reports whether two values mean the same.
func equalJSON(a, b jsontext.Value) bool {
	a, b = a.Clone(), b.Clone()
	if a.Canonicalize() != nil || b.Canonicalize() != nil {
		return bytes.Equal(a, b)
	}
	return bytes.Equal(a, b)
}
