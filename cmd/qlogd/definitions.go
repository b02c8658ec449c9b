package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api/wire"
)

// defined is one queue or webhook of a file, and where it stands.
type defined struct {
	file string
	node *yaml.Node
}

// definitions are the queues and webhooks of several files.
type definitions struct{ queues, webhooks []defined }

// read adds the documents of a file, YAML or JSON: each a mapping with queues and
// webhooks. What is wrong is told with its line.
func (d *definitions) read(file string, text []byte) error {
	if v := jsontext.Value(text); v.Kind() == '{' && v.IsValid() {
		// Nearly all JSON is YAML, and a few texts are not.
		root, err := toYAML(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		return d.document(file, root)
	}
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		root := resolve(doc.Content[0])
		if root.Tag == "!!null" {
			continue // nothing but comments
		}
		if err := d.document(file, root); err != nil {
			return err
		}
	}
}

func (d *definitions) document(file string, root *yaml.Node) error {
	if root.Kind != yaml.MappingNode {
		return at(file, root, "a document must be a mapping with queues and webhooks")
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], resolve(root.Content[i+1])
		var to *[]defined
		switch key.Value {
		case "queues":
			to = &d.queues
		case "webhooks":
			to = &d.webhooks
		default:
			return at(file, key, "unknown key %.64q: a document has queues and webhooks", key.Value)
		}
		for j := range i / 2 {
			if root.Content[2*j].Value == key.Value {
				return at(file, key, "%s stands here twice", key.Value)
			}
		}
		if value.Tag == "!!null" {
			continue
		}
		if value.Kind != yaml.SequenceNode {
			return at(file, value, "%s must be a list", key.Value)
		}
		for _, n := range value.Content {
			*to = append(*to, defined{file, resolve(n)})
		}
	}
	return nil
}

func at(file string, n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", file, n.Line, fmt.Sprintf(format, args...))
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// request returns the definitions as the API takes them.
func (d *definitions) request() (out wire.DefinitionsRequest, err error) {
	left := maxNodes
	list := func(of []defined) []jsontext.Value {
		var values []jsontext.Value
		for _, one := range of {
			var b []byte
			if err == nil {
				b, err = appendJSON(nil, one, one.node, &left)
			}
			values = append(values, b)
		}
		return values
	}
	out.Queues, out.Webhooks = list(d.queues), list(d.webhooks)
	return out, err
}

// maxNodes bounds what aliases can make of a small file.
const maxNodes = 1 << 20

// appendJSON appends a YAML value as JSON.
func appendJSON(b []byte, in defined, n *yaml.Node, left *int) ([]byte, error) {
	if *left--; *left < 0 {
		return nil, at(in.file, n, "the file is too large, or its aliases make it so")
	}
	var err error
	switch n = resolve(n); n.Kind {
	case yaml.MappingNode:
		seen := map[string]bool{}
		b = append(b, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := resolve(n.Content[i])
			switch {
			case key.Kind != yaml.ScalarNode:
				return nil, at(in.file, key, "a key must be a text")
			case key.Tag == "!!merge":
				return nil, at(in.file, key, "<< is not taken: write the fields out, or use an alias for a whole value")
			case seen[key.Value]:
				return nil, at(in.file, key, "%.64q stands here twice", key.Value)
			}
			seen[key.Value] = true
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = jsontext.AppendQuote(b, key.Value); err != nil {
				return nil, at(in.file, key, "a key must be UTF-8")
			}
			if b, err = appendJSON(append(b, ':'), in, n.Content[i+1], left); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case yaml.SequenceNode:
		b = append(b, '[')
		for i, e := range n.Content {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendJSON(b, in, e, left); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	}
	return appendScalar(b, in, n)
}

func appendScalar(b []byte, in defined, n *yaml.Node) ([]byte, error) {
	switch n.ShortTag() {
	case "!!null":
		return append(b, "null"...), nil
	case "!!bool":
		var v bool
		if err := n.Decode(&v); err != nil {
			return nil, at(in.file, n, "%.64q is not true or false", n.Value)
		}
		return strconv.AppendBool(b, v), nil
	case "!!int", "!!float":
		if v := jsontext.Value(n.Value); v.Kind() == '0' && v.IsValid() {
			return append(b, v...), nil // as it stands there, however large or precise
		}
		var i int64
		var f float64
		if n.Decode(&i) == nil {
			return strconv.AppendInt(b, i, 10), nil
		}
		if err := n.Decode(&f); err == nil && f-f == 0 {
			return strconv.AppendFloat(b, f, 'g', -1, 64), nil
		}
		return nil, at(in.file, n, "%.64q is not a number that can be used", n.Value)
	case "!!str", "!!timestamp": // a date is what it looks like
		b, err := jsontext.AppendQuote(b, n.Value)
		if err != nil {
			return nil, at(in.file, n, "a text must be UTF-8")
		}
		return b, nil
	}
	return nil, at(in.file, n, "a value of type %.64s is not taken", n.Tag)
}

var elementRE = regexp.MustCompile(`^(queues|webhooks)\[(\d+)\]\.?(.*)$`)

// tell says what the server found wrong, with the line it stands at.
func (d *definitions) tell(w wire.Wrong) string {
	m := elementRE.FindStringSubmatch(w.Field)
	if m == nil {
		return w.Detail
	}
	list := d.queues
	if m[1] == "webhooks" {
		list = d.webhooks
	}
	i, err := strconv.Atoi(m[2])
	if err != nil || i >= len(list) {
		return w.Field + ": " + w.Detail
	}
	name := ""
	if n := find(list[i].node, "name"); n != nil {
		name = fmt.Sprintf(" %.64s", strings.ToValidUTF8(n.Value, "?"))
	}
	return fmt.Sprintf("%s:%d: %s%s: %s", list[i].file, lineOf(list[i].node, m[3]), strings.TrimSuffix(m[1], "s"), short(name, 64), w.Detail)
}

// lineOf returns the line of a path such as delivery.backoff_schedule_ms[3], or
// of as much of it as there is.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for path != "" {
		var part string
		part, path, _ = strings.Cut(path, ".")
		name, index, _ := strings.Cut(part, "[")
		n = resolve(n)
		key := keyOf(n, name)
		if key == nil {
			return line
		}
		line, n = key.Line, find(n, name)
		if i, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n = resolve(n.Content[i])
			line = n.Line
		}
	}
	return line
}

// find returns a mapping's value, nil where there is none.
func find(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return resolve(n.Content[i+1])
		}
	}
	return nil
}

func keyOf(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i]
		}
	}
	return nil
}
