package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var applyCommand = remote("apply", func(c request, f *struct {
	File   repeated `flag:"file|f"`
	DryRun bool
}) error {
	if len(f.File) == 0 {
		return usagef("apply needs a file: -f FILE, or -f - for stdin")
	}
	d := definitions{}
	for _, name := range f.File {
		b, err := c.readInput(name)
		if err != nil {
			return err
		}
		if err := d.read(name, b); err != nil {
			return usagef("%w", err)
		}
	}
	req, err := d.request()
	if err != nil {
		return usagef("%w", err)
	}
	changes, err := c.Define(c.ctx, req, f.DryRun)
	if err != nil {
		return d.refused(err)
	}
	return c.changes(changes, f.DryRun)
})

// refused joins all mistakes that the server reports to one error.
func (d definitions) refused(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	wrong := e.Problem.Errors
	if len(wrong) == 0 && elementRE.MatchString(e.Problem.Field) {
		wrong = []wire.Wrong{{Field: e.Problem.Field, Detail: e.Problem.Detail}}
	}
	if len(wrong) == 0 {
		return err
	}
	lines := make([]string, len(wrong))
	for i, w := range wrong {
		lines[i] = d.mistake(w)
	}
	code := exitFailed
	if errors.Is(err, client.ErrInvalidArgument) {
		code = exitUsage
	}
	return &exitError{code, errors.New("nothing was changed:\n" + strings.Join(lines, "\n"))}
}

// changes prints what changed, or would.
func (a *app) changes(changes []wire.DefinitionChange, dry bool) error {
	counts := map[string]int{}
	var rows [][]any
	for _, c := range changes {
		counts[c.Action]++
		if len(c.Diff) == 0 {
			rows = append(rows, []any{c.Action, c.Kind, c.Name, "-", "-", "-"})
		}
		for _, d := range c.Diff {
			rows = append(rows, []any{c.Action, c.Kind, c.Name, d.Path,
				shown(d.Before), shown(d.After)})
		}
	}
	var err error
	if a.output == "json" {
		err = list(a, changes, nil, "", nil)
	} else {
		err = a.table(nil, nil, "action,kind,name,field,before,after", rows)
	}
	created, updated := "created", "updated"
	if dry {
		created, updated = "to create", "to update"
	}
	fmt.Fprintf(a.stderr, "%d %s, %d %s, %d unchanged\n", counts[wire.ActionCreate], created,
		counts[wire.ActionUpdate], updated, counts[wire.ActionUnchanged])
	return err
}

// shown is a field's value in a table.
func shown(v jsontext.Value) string {
	if v.Kind() == 'n' || len(v) == 0 {
		return "-"
	}
	return short(string(v), 80)
}

// defined is one queue or webhook of a file, and where it is.
type defined struct {
	file string
	node *yaml.Node
}

// definitions are the "queues" and "webhooks" of several files.
type definitions map[string][]defined

// read adds the documents of a file, YAML or JSON: each a mapping with queues and
// webhooks. Errors name the line.
func (d definitions) read(file string, text []byte) error {
	if v := jsontext.Value(text); v.Kind() == '{' && v.IsValid() {
		text = asYAML(text)
	}
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s:%w", file, api.YAMLError(err))
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

func (d definitions) document(file string, root *yaml.Node) error {
	if root.Kind != yaml.MappingNode {
		return lineError(file, root, "a document must be a mapping with queues and webhooks")
	}
	seen := map[string]bool{}
	for pair := range slices.Chunk(root.Content, 2) {
		key, value := pair[0], resolve(pair[1])
		name := key.Value
		switch {
		case name != "queues" && name != "webhooks":
			return lineError(file, key, "unknown key %.64q: a document has queues and webhooks",
				name)
		case seen[name]:
			return lineError(file, key, "%s is here twice", name)
		case value.Kind != yaml.SequenceNode && value.Tag != "!!null":
			return lineError(file, value, "%s must be a list", name)
		}
		seen[name] = true
		for _, n := range value.Content {
			d[name] = append(d[name], defined{file, resolve(n)})
		}
	}
	return nil
}

func lineError(file string, n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", file, n.Line, fmt.Sprintf(format, args...))
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// request returns the definitions as the API takes them.
func (d definitions) request() (out wire.DefinitionsRequest, err error) {
	left := maxNodes
	list := func(of []defined) (values []jsontext.Value) {
		for _, one := range of {
			v, verr := one.value(one.node, &left)
			b, merr := wire.Marshal(v)
			values, err = append(values, b), cmp.Or(err, verr, merr)
		}
		return values
	}
	out.Queues, out.Webhooks = list(d["queues"]), list(d["webhooks"])
	return out, err
}

// maxNodes bounds what aliases can make of a small file.
const maxNodes = 1 << 20

// value returns a YAML value for JSON.
func (d *defined) value(n *yaml.Node, left *int) (v any, err error) {
	if *left--; *left < 0 {
		return nil, lineError(d.file, n, "the file is too large, or its aliases make it so")
	}
	switch n.Kind {
	case yaml.AliasNode:
		return d.value(n.Alias, left)
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, e := range n.Content {
			if list[i], err = d.value(e, left); err != nil {
				return nil, err
			}
		}
		return list, nil
	case yaml.MappingNode:
		members := map[string]any{}
		for pair := range slices.Chunk(n.Content, 2) {
			key := pair[0]
			_, twice := members[key.Value]
			switch {
			case key.Kind != yaml.ScalarNode:
				return nil, lineError(d.file, key, "a key must be a text")
			case key.Tag == "!!merge":
				return nil, lineError(d.file, key, "<< is not taken: write the fields out, "+
					"or use an alias for a whole value")
			case twice:
				return nil, lineError(d.file, key, "%.64q is here twice", key.Value)
			}
			if members[key.Value], err = d.value(pair[1], left); err != nil {
				return nil, err
			}
		}
		return members, nil
	}
	switch n.ShortTag() {
	case "!!str", "!!timestamp": // a date is what it looks like
		return n.Value, nil
	case "!!int", "!!float":
		if number := jsontext.Value(n.Value); number.IsValid() {
			return number, nil // as written, however large or precise
		}
	case "!!null", "!!bool":
	default:
		return nil, lineError(d.file, n, "a value of type %.64s is not supported", n.Tag)
	}
	err = n.Decode(&v)
	if f, ok := v.(float64); err != nil || ok && f-f != 0 {
		return nil, lineError(d.file, n, "%.64q can't be used", n.Value)
	}
	return v, nil
}

var elementRE = regexp.MustCompile(`^(queues|webhooks)\[(\d+)\]\.?(.*)$`)

// mistake formats a mistake that the server reports, with its line.
func (d definitions) mistake(w wire.Wrong) string {
	m := elementRE.FindStringSubmatch(w.Field)
	if m == nil {
		return w.Detail
	}
	list := d[m[1]]
	i, err := strconv.Atoi(m[2])
	if err != nil || i >= len(list) {
		return w.Field + ": " + w.Detail
	}
	name := ""
	if _, n := find(list[i].node, "name"); n != nil {
		name = fmt.Sprintf(" %.64s", strings.ToValidUTF8(n.Value, "?"))
	}
	return fmt.Sprintf("%s:%d: %s%s: %s", list[i].file, lineOf(list[i].node, m[3]),
		strings.TrimSuffix(m[1], "s"), short(name, 64), w.Detail)
}

// lineOf returns the line of a path such as delivery.backoff_schedule_ms[3], or
// of as much of it as there is.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for path != "" {
		var part string
		part, path, _ = strings.Cut(path, ".")
		name, index, _ := strings.Cut(part, "[")
		key, value := find(resolve(n), name)
		if key == nil {
			return line
		}
		line, n = key.Line, value
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n = resolve(n.Content[i])
			line = n.Line
		}
	}
	return line
}

// find returns a mapping's key and value, nil where there is none.
func find(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		for pair := range slices.Chunk(n.Content, 2) {
			if pair[0].Value == name {
				return pair[0], resolve(pair[1])
			}
		}
	}
	return nil, nil
}

var exportCommands = group("export", plain("export definitions",
	func(c request, f *struct{ At string }) error {
		return c.ask(func(c request) error {
			d, err := c.Definitions(c.ctx, client.At(f.At))
			if err != nil || c.output == "json" {
				return c.answer(d, err, "")
			}
			return writeDefinitions(c.stdout, d)
		})
	}, (*app).addrFlag, (*app).authFlags, func(a *app, cmd *cobra.Command) {
		outputFlag(cmd, &a.output, "yaml", "json")
	}))

// writeDefinitions writes definitions as YAML. What is not set is left out, and a
// queue's dead-letter queue is beside delivery.
func writeDefinitions(w io.Writer, d *wire.Definitions) error {
	b, err := wire.Marshal(d)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(asYAML(b), &doc); err != nil {
		return err
	}
	root := doc.Content[0]
	restyle(root)
	if _, queues := find(root, "queues"); queues != nil {
		for _, q := range queues.Content {
			tidyQueue(q)
		}
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return err
	}
	return enc.Close()
}

// tidyQueue leaves out what is not set, and puts the dead-letter queue last.
func tidyQueue(q *yaml.Node) {
	_, delivery := find(q, "delivery")
	key, dlq := find(delivery, "dead_letter_queue")
	for _, n := range []*yaml.Node{q, delivery} {
		kept := n.Content[:0]
		for pair := range slices.Chunk(n.Content, 2) {
			v := pair[1]
			if v.Tag != "!!null" && v != dlq && (v.Kind != yaml.ScalarNode || v.Value != "") {
				kept = append(kept, pair...)
			}
		}
		n.Content = kept
	}
	if dlq != nil && dlq.Tag != "!!null" {
		q.Content = append(q.Content, key, dlq)
	}
}

// asYAML makes JSON YAML, line by line: nearly all is, but for some characters, escapes of
// texts, and tabs.
func asYAML(b []byte) []byte {
	b = stringRE.ReplaceAllFunc(b, func(quoted []byte) []byte {
		text, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			return quoted // not JSON
		}
		return strconv.AppendQuoteToASCII(nil, string(text)) // all of Go's escapes are YAML's
	})
	return bytes.ReplaceAll(b, []byte("\t"), []byte(" "))
}

// stringRE matches a text in JSON.
var stringRE = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// restyle makes the YAML of JSON what people write: blocks in place of braces, and quotes only
// where they are needed.
func restyle(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode || len(n.Content) > 0 {
		n.Style = 0
	}
	if n.Tag == "!!str" {
		if n.SetString(n.Value); n.Style == yaml.LiteralStyle && !plainLines(n.Value) {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	for _, part := range n.Content {
		restyle(part)
	}
}

// plainLines reports whether a text can be a block: YAML's readers disagree on texts
// with spaces or control characters at odd places.
func plainLines(s string) bool {
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		odd := func(r rune) bool { return !unicode.IsPrint(r) }
		if line == "" || strings.HasSuffix(line, " ") || strings.ContainsFunc(line, odd) {
			return false
		}
	}
	return s[0] != ' '
}
