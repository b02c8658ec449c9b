package main

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/qlogd/qlogd/api/wire"
)

// wire writes one value as a line of JSON.
func (a *app) wire(v any) error {
	b, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(append(b, '\n'))
	return err
}

// say prints v with -o json, and else a line of text. A nil v prints nothing.
func (a *app) say(v any, format string, args ...any) error {
	if a.output != "json" {
		_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
		return err
	}
	if v == nil {
		return nil
	}
	return a.wire(v)
}

// note prints a line for people on stderr, which -o json does without.
func (a *app) note(format string, args ...any) {
	if a.output != "json" {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// answer says v unless there was an error.
func (a *app) answer(v any, err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	return a.say(v, format, args...)
}

// span returns a function that writes a number of units as flags take them: 30s, 1h30m, 7d.
func span(unit time.Duration) func(int64) string {
	return func(n int64) string {
		const day = 24 * time.Hour
		d := time.Duration(n) * unit
		if d >= day && d%day == 0 {
			return fmt.Sprintf("%dd", d/day)
		}
		text := d.String()
		for _, zero := range []string{"m0s", "h0m"} {
			if strings.HasSuffix(text, zero) {
				text = text[:len(text)-2]
			}
		}
		return text
	}
}

// list prints each item as a line of JSON, or as a row of a table whose header
// is separated by commas.
func list[T any](a *app, items []T, err error, header string, row func(*T) []any) error {
	if err != nil {
		return err
	}
	rows := make([][]any, 0, len(items))
	for i := range items {
		if a.output != "json" {
			rows = append(rows, row(&items[i]))
		} else if err := a.wire(items[i]); err != nil {
			return err
		}
	}
	if a.output == "json" {
		return nil
	}
	_, err = io.WriteString(a.stdout, a.tableText(header, rows))
	return err
}

// first returns the first n items, or all if n is not positive.
func first[T any](n int, items iter.Seq2[T, error]) (out []T, err error) {
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		if out = append(out, item); len(out) == n {
			break
		}
	}
	return out, nil
}

// show prints one value as JSON, or its fields, rows of a name and a value
// each, under the value's own name. It leaves out rows whose value is nil.
func (a *app) show(v any, err error, what, name string, rows [][]any) error {
	switch {
	case err != nil:
		return err
	case a.output == "json":
		return a.wire(v)
	}
	rows = slices.DeleteFunc(rows, func(r []any) bool { return r[1] == nil })
	_, err = io.WriteString(a.stdout, a.layout(table.Row{strings.ToUpper(what), name}, rows))
	return err
}

// optional returns nil, so that show leaves it out, if text is empty.
func optional(text string) any { return onlyIf(text != "", text) }

// onlyIf returns v if it is set, or nil, so that show leaves it out.
func onlyIf(set bool, v any) any {
	if !set {
		return nil
	}
	return v
}

// table prints v as JSON, or rows under a header, its columns separated by commas. Nothing is cut
// without a terminal, so that awk and grep find what they look for.
func (a *app) table(v any, err error, header string, rows [][]any) error {
	switch {
	case err != nil:
		return err
	case a.output == "json":
		return a.wire(v)
	}
	_, err = io.WriteString(a.stdout, a.tableText(header, rows))
	return err
}

func (a *app) tableText(header string, rows [][]any) string {
	var names table.Row
	for name := range strings.SplitSeq(strings.ToUpper(header), ",") {
		names = append(names, name)
	}
	return a.layout(names, rows)
}

func (a *app) layout(header table.Row, rows [][]any) string {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	if a.coloured(a.stdout) {
		style.Color.Header = text.Colors{text.Bold}
		for _, r := range rows {
			for i, cell := range r {
				if word, ok := cell.(string); ok && colours[word] != 0 {
					r[i] = a.paint(a.stdout, colours[word], word)
				}
			}
		}
	}
	t.SetStyle(style)
	t.AppendHeader(header)
	for _, r := range rows {
		t.AppendRow(r)
	}
	if f, ok := a.stdout.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			t.Style().Size.WidthMax = width
		}
	}
	return t.Render() + "\n"
}

// colours are those of the words that a reader of a table looks for.
var colours = map[string]text.Color{
	"acked": text.FgGreen, "completed": text.FgGreen, "leader": text.FgGreen,
	"paused": text.FgYellow, "cancelled": text.FgYellow, "retried": text.FgYellow,
	"lease_expired": text.FgYellow, "dead": text.FgRed, "dead_lettered": text.FgRed,
	"discarded": text.FgRed, "rejected": text.FgRed, "failed": text.FgRed,
}

// coloured reports whether colours are wanted on a stream: on a terminal, without NO_COLOR.
func (a *app) coloured(stream any) bool {
	return terminal(stream) && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
}

// paint colours text where colours are wanted.
func (a *app) paint(stream any, c text.Color, s string) string {
	if !a.coloured(stream) {
		return s
	}
	return text.Colors{c}.Sprint(s)
}

// terminal reports whether a stream is one.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// when formats a time: relative to now on a terminal, RFC 3339 elsewhere.
func (a *app) when(at wire.Time) string {
	switch t := at.Time(); {
	case at == 0:
		return "-"
	case terminal(a.stdout):
		return humanize.Time(t)
	default:
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
}

// short makes user text one line of at most n characters.
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

func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(int64(n)) + " " + many
}

func messages[N int | int64](n N) string { return plural(n, "message", "messages") }

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// progress is a bar on stderr. It appears only on a terminal, and after a second.
type progress struct {
	a     *app
	label string
	began time.Time
	bar   *progressbar.ProgressBar
	off   bool
}

func (a *app) progress(label string, on bool) *progress {
	return &progress{a: a, label: label, began: time.Now(), off: !on || !terminal(a.stderr)}
}

func (p *progress) set(done, total int64) {
	if p.off || total <= 0 || p.bar == nil && time.Since(p.began) < time.Second {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(p.a.stderr), progressbar.OptionSetDescription(p.label),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(),
			progressbar.OptionEnableColorCodes(p.a.coloured(p.a.stderr)))
	}
	p.bar.ChangeMax64(total)
	_ = p.bar.Set64(min(done, total))
}

// done removes the bar.
func (p *progress) done() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	p.off = true
}
