package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// outputFlag gives a command -o table|json.
func (a *app) outputFlag(cmd *cobra.Command) {
	cmd.Flags().VarP(&choice{&a.output, []string{"table", "json"}}, "output", "o", "how to print: table or json")
	if a.output == "" {
		a.output = "table"
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// choice is a flag that takes one of a few values.
type choice struct {
	s  *string
	of []string
}

func (c *choice) String() string {
	if c.s == nil {
		return ""
	}
	return *c.s
}
func (c *choice) Type() string { return strings.Join(c.of, "|") }
func (c *choice) Set(v string) error {
	if !slices.Contains(c.of, v) {
		return fmt.Errorf("must be %s", strings.Join(c.of, " or "))
	}
	*c.s = v
	return nil
}

// json writes one value as one line: what jq reads.
func (a *app) json(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table writes rows under a header. Without a terminal there are no borders
// and nothing is cut, so that awk and grep find what they look for.
func (a *app) table(header []string, rows [][]any) error {
	for i := range header {
		header[i] = strings.ToUpper(header[i])
	}
	return writeTable(a.stdout, header, rows)
}

// pairs writes the fields of one thing; its name is left as it is.
func (a *app) pairs(what, name string, rows [][]any) error {
	return writeTable(a.stdout, []string{strings.ToUpper(what), name}, rows)
}

func writeTable(w io.Writer, header []string, rows [][]any) error {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	h := make(table.Row, len(header))
	for i, s := range header {
		h[i] = s
	}
	t.AppendHeader(h)
	for _, r := range rows {
		t.AppendRow(r)
	}
	if f, ok := w.(interface{ Fd() uintptr }); ok && term.IsTerminal(int(f.Fd())) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			t.Style().Size.WidthMax = width
		}
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

// ago tells a time as people do, on a terminal; RFC 3339 elsewhere.
func (a *app) ago(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case terminal(a.stdout):
		return humanize.Time(t)
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// short cuts what users wrote to one line of at most n characters.
func short(s string, n int) string {
	out := make([]rune, 0, n)
	for _, r := range s {
		if len(out) == n {
			return string(out[:n-1]) + "…"
		}
		if r < ' ' || r == 0x7f || r >= 0x202a && r <= 0x202e {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(int64(n)) + " " + many
}
