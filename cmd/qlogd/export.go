package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) exportCmd() *cobra.Command {
	output, instant := "yaml", ""
	cmd := &cobra.Command{
		Use:   "definitions",
		Short: "Print all queues and webhooks as apply takes them",
		Long:  "Prints all queues with their whole policies, and all webhooks. Applied again, it changes nothing.",
		Example: `  qlogd export definitions > qlogd.yaml
  qlogd export definitions --at 2026-01-31T12:00:00Z
  qlogd export definitions -o json | jq -r '.queues[].name'`,
		Args: args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			d, err := c.Definitions(ctx, atOption(instant)...)
			if err != nil {
				return err
			}
			if output == "json" {
				return a.wire(d)
			}
			return writeDefinitions(a.stdout, d)
		}),
	}
	a.reachFlags(cmd)
	cmd.Flags().StringVar(&instant, "at", "", "as it was then: an RFC 3339 time, an event's id, index:N, 15m, start")
	cmd.Flags().VarP(&choice{&output, []string{"yaml", "json"}}, "output", "o", "how to print: yaml or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"yaml", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return group(&cobra.Command{
		Use:     "export",
		Short:   "Print what is defined",
		Example: "  qlogd export definitions > qlogd.yaml",
	}, cmd)
}

// writeDefinitions writes definitions as YAML. What is not set is left out, and a
// queue's dead-letter queue stands beside delivery.
func writeDefinitions(w io.Writer, d *wire.Definitions) error {
	b, err := wire.Marshal(d)
	if err != nil {
		return err
	}
	root, err := toYAML(b)
	if err != nil {
		return err
	}
	if queues := find(root, "queues"); queues != nil {
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

func tidyQueue(q *yaml.Node) {
	delivery := find(q, "delivery")
	dlq := find(delivery, "dead_letter_queue")
	drop(delivery, func(name string, v *yaml.Node) bool { return v.Tag == "!!null" || name == "dead_letter_queue" })
	drop(q, func(_ string, v *yaml.Node) bool {
		return v.Tag == "!!null" || v.Kind == yaml.ScalarNode && v.Value == ""
	})
	if dlq != nil && dlq.Tag != "!!null" {
		key := &yaml.Node{}
		key.SetString("dead_letter_queue")
		q.Content = append(q.Content, key, dlq)
	}
}

// drop takes members out of a mapping.
func drop(n *yaml.Node, unwanted func(name string, v *yaml.Node) bool) {
	kept := n.Content[:0]
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !unwanted(n.Content[i].Value, n.Content[i+1]) {
			kept = append(kept, n.Content[i], n.Content[i+1])
		}
	}
	n.Content = kept
}

// toYAML makes JSON YAML, in its order, with the lines that it had.
func toYAML(b []byte) (*yaml.Node, error) {
	r := jsonReader{dec: jsontext.NewDecoder(bytes.NewBuffer(b)), text: b, line: 1}
	n, err := r.value()
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON")
	}
	return n, nil
}

type jsonReader struct {
	dec  *jsontext.Decoder
	text []byte // all of it
	at   int64  // up to where lines were counted
	line int
}

func (r *jsonReader) value() (*yaml.Node, error) {
	tok, err := r.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	to := r.dec.InputOffset()
	r.line += bytes.Count(r.text[r.at:to], []byte("\n"))
	r.at = to
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line}
	switch kind := tok.Kind(); kind {
	case 'n':
		n.Tag, n.Value = "!!null", "null"
	case 't', 'f':
		n.Tag, n.Value = "!!bool", tok.String()
	case '0':
		n.Value = tok.String() // its tag is what it looks like
	case '"':
		if n.SetString(tok.String()); n.Style == yaml.LiteralStyle && !plainLines(n.Value) {
			n.Style = yaml.DoubleQuotedStyle
		}
	case '{', '[':
		n.Kind = yaml.MappingNode
		if kind == '[' {
			n.Kind = yaml.SequenceNode
		}
		for r.dec.PeekKind() != kind+2 { // } and ]
			e, err := r.value()
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, e)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		if _, err := r.dec.ReadToken(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// plainLines reports whether a text can stand in a block: of what has spaces or
// control characters at odd places, YAML's readers make different things.
func plainLines(s string) bool {
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		if line == "" || strings.TrimRight(line, " ") != line || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return false
		}
	}
	return s[0] != ' '
}
