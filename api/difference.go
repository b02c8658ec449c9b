package api

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

// maxChanges bounds what is told of a difference; one that has more is told as
// one replacement.
const maxChanges = 1000

// difference tells two JSON values apart by operations of JSON Patch (RFC 6902),
// in an order in which they can be applied. Numbers are compared as they are
// written. Members come by name.
func difference(before, after jsontext.Value) ([]wire.Change, error) {
	out, err := differ([]wire.Change{}, "", before, after)
	if err == nil && len(out) > maxChanges {
		out = []wire.Change{{Op: "replace", Path: "", Value: after, Old: before}}
	}
	return out, err
}

func differ(out []wire.Change, path string, a, b jsontext.Value) ([]wire.Change, error) {
	if len(out) > maxChanges {
		return out, nil
	}
	switch {
	case a.Kind() == '{' && b.Kind() == '{':
		return differObjects(out, path, a, b)
	case a.Kind() == '[' && b.Kind() == '[':
		return differLists(out, path, a, b)
	}
	same, err := equal(a, b)
	if err != nil || same {
		return out, err
	}
	return append(out, wire.Change{Op: "replace", Path: path, Value: b.Clone(), Old: a.Clone()}), nil
}

// equal compares two values that are not both objects, or both lists.
func equal(a, b jsontext.Value) (bool, error) {
	if a.Kind() != b.Kind() {
		return false, nil
	}
	if a.Kind() != '"' {
		return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)), nil
	}
	// The same text can be written in several ways.
	var x, y string
	if err := json.Unmarshal(a, &x); err != nil {
		return false, err
	}
	err := json.Unmarshal(b, &y)
	return x == y, err
}

func differObjects(out []wire.Change, path string, a, b jsontext.Value) ([]wire.Change, error) {
	var x, y map[string]jsontext.Value
	if err := json.Unmarshal(a, &x); err != nil {
		return out, err
	}
	if err := json.Unmarshal(b, &y); err != nil {
		return out, err
	}
	names := make([]string, 0, len(x)+len(y))
	for name := range x {
		names = append(names, name)
	}
	for name := range y {
		if _, both := x[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		at := path + "/" + pointer.Replace(name)
		old, had := x[name]
		v, has := y[name]
		var err error
		switch {
		case !had:
			out = append(out, wire.Change{Op: "add", Path: at, Value: v.Clone()})
		case !has:
			out = append(out, wire.Change{Op: "remove", Path: at, Old: old.Clone()})
		default:
			if out, err = differ(out, at, old, v); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// pointer escapes a name for a JSON pointer.
var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// differLists compares element by element; what the one has more is removed
// from its end, or added there.
func differLists(out []wire.Change, path string, a, b jsontext.Value) ([]wire.Change, error) {
	var x, y []jsontext.Value
	if err := json.Unmarshal(a, &x); err != nil {
		return out, err
	}
	if err := json.Unmarshal(b, &y); err != nil {
		return out, err
	}
	var err error
	for i := range min(len(x), len(y)) {
		if out, err = differ(out, path+"/"+strconv.Itoa(i), x[i], y[i]); err != nil {
			return out, err
		}
	}
	for i := len(x) - 1; i >= len(y); i-- {
		out = append(out, wire.Change{Op: "remove", Path: path + "/" + strconv.Itoa(i), Old: x[i].Clone()})
	}
	for i := len(x); i < len(y); i++ {
		out = append(out, wire.Change{Op: "add", Path: path + "/" + strconv.Itoa(i), Value: y[i].Clone()})
	}
	return out, nil
}
