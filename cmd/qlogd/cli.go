package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

const (
	defaultAddr    = "http://127.0.0.1:7070"
	defaultDataDir = "./qlogd-data"

	instantHelp = "an RFC 3339 time, an event's id, index:N, 15m, start"
)

// reach is how a command reaches a server. What no flag names comes from the
// environment.
type reach struct {
	addr      string // one or more, separated by commas
	token     string
	tokenFile string
	caCert    string
}

// local makes a command with --output that needs no server.
func (a *app) local(use, short, example string, n cobra.PositionalArgs,
	do func(ctx context.Context, argv []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: n,
		RunE: func(cmd *cobra.Command, argv []string) error { return do(cmd.Context(), argv) }}
	a.outputFlag(cmd)
	return cmd
}

// remote makes a command that asks a server. It reports a server's refusal of
// the arguments as wrong usage.
func (a *app) remote(use, short, example string, n cobra.PositionalArgs,
	do func(ctx context.Context, c *client.Client, argv []string) error) *cobra.Command {
	cmd := a.local(use, short, example, n, func(ctx context.Context, argv []string) error {
		c, err := a.server()
		if err != nil {
			return err
		}
		return refusal(do(ctx, c, argv))
	})
	a.addrFlags(cmd)
	a.authFlags(cmd)
	return cmd
}

// group is a command that only holds others. Without one of them it prints
// their list.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("unknown command %.64q for %s; see %s --help",
				args[0], c.CommandPath(), c.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		_ = c.Help()
		return &exitError{code: exitUsage}
	}
	cmd.AddCommand(subs...)
	return cmd
}

// args makes a wrong number of arguments a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

func exactly(n int) cobra.PositionalArgs { return args(cobra.ExactArgs(n)) }

func (a *app) addrFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.reach.addr, "addr", "",
		"address of a node, or of several: A,B,C (default $QLOGD_ADDR or "+defaultAddr+")")
}

func (a *app) authFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.reach.token, "token", "",
		"token to send (default $QLOGD_TOKEN); visible to others on this machine: prefer --token-file")
	f.StringVar(&a.reach.tokenFile, "token-file", "",
		"read the token from this file (default $QLOGD_TOKEN_FILE)")
	a.caFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
}

func (a *app) caFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.reach.caCert, "ca-cert", "",
		"trust the authorities in this PEM file, for https (default $QLOGD_CA_CERT)")
}

// outputFlag gives a command -o table|json.
func (a *app) outputFlag(cmd *cobra.Command) {
	a.output = "table"
	choiceFlag(cmd, &a.output, "table", "json")
}

// choiceFlag gives a command an --output with two choices.
func choiceFlag(cmd *cobra.Command, s *string, of ...string) {
	cmd.Flags().VarP(&choice{s, of}, "output", "o", "output format: "+strings.Join(of, " or "))
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
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

// fromEnv fills in what no flag named.
func (a *app) fromEnv(v *string, env, def string) { *v = cmp.Or(*v, a.getenv(env), def) }

// server returns a client of the nodes that flags or environment name.
func (a *app) server(more ...client.Option) (*client.Client, error) {
	r := a.reach
	a.fromEnv(&r.addr, "QLOGD_ADDR", defaultAddr)
	a.fromEnv(&r.caCert, "QLOGD_CA_CERT", "")
	if r.token == "" && r.tokenFile == "" { // a flag goes before both variables
		r.token, r.tokenFile = a.getenv("QLOGD_TOKEN"), a.getenv("QLOGD_TOKEN_FILE")
	}
	if r.token == "" && r.tokenFile != "" {
		b, err := os.ReadFile(r.tokenFile)
		if err != nil {
			return nil, usagef("token: %w", err)
		}
		if r.token = strings.TrimSpace(string(b)); r.token == "" {
			return nil, usagef("token: %s is empty", r.tokenFile)
		}
	}
	opts := []client.Option{
		client.WithUserAgent("qlogd-cli/" + build().Version),
		client.WithToken(r.token),
		// A person waits: fail soon where no server answers.
		client.WithRetry(client.Retry{Attempts: 4, Min: 50 * time.Millisecond, Max: 2 * time.Second}),
	}
	if r.caCert != "" {
		opts = append(opts, client.WithCACert(r.caCert))
	}
	c, err := client.New(r.addr, append(opts, more...)...)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return c, nil
}

// refusal makes the server's refusal of the arguments a usage error, and
// returns other errors as they are.
func refusal(err error) error {
	var e *client.Error
	if errors.As(err, &e) &&
		(errors.Is(err, client.ErrInvalidArgument) || e.Problem.Code == "invalid_json") {
		if e.Problem.Field != "" {
			return usagef("%s: %w", e.Problem.Field, err)
		}
		return usagef("%w", err)
	}
	if errors.Is(err, client.ErrUnauthenticated) {
		return fmt.Errorf("%w; the token comes from --token-file, --token or QLOGD_TOKEN", err)
	}
	return err
}

// atOption returns the call option of an --at flag.
func atOption(instant string) []client.CallOption {
	if instant == "" {
		return nil
	}
	return []client.CallOption{client.At(instant)}
}

// destroyFlags gives a command --yes and --dry-run.
func (a *app) destroyFlags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "don't ask")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "print what would happen, and do nothing")
	return cmd
}

// confirmed asks on a terminal whether to do what destroys something, and
// returns nil for yes. Without a terminal only --yes is a yes: a script must
// not destroy by forgetting something.
func (a *app) confirmed(what string) error {
	if a.yes {
		return nil
	}
	if !terminal(a.stdin) {
		return usagef("%s: say --yes, or --dry-run to look first", what)
	}
	fmt.Fprintf(a.stderr, "%s. Go on? [y/N] ", what)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n')
	if s := strings.ToLower(strings.TrimSpace(line)); s != "y" && s != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

// destroy does what destroys something once it is confirmed, or with --dry-run
// only prints what it would do.
func (a *app) destroy(what string, do func() error) error {
	if a.dryRun {
		_, err := fmt.Fprintln(a.stdout, "would", what)
		return err
	}
	if err := a.confirmed(what); err != nil {
		return err
	}
	return do()
}

// readInput reads a file, or stdin for "-".
func (a *app) readInput(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.stdin)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return b, nil
}

// document is a JSON object made of a file and of flags that set members of it.
type document map[string]jsontext.Value

// readDocument reads a file, strictly as a T; the name "" is an empty object.
func readDocument[T any](a *app, file string) (document, error) {
	d := document{}
	if file == "" {
		return d, nil
	}
	b, err := a.readInput(file)
	if err == nil {
		if err = wire.Decode(b, new(T)); err == nil {
			err = jsonv2.Unmarshal(b, &d)
		}
		if err != nil {
			err = usagef("%s: %w", file, err)
		}
	}
	return d, err
}

// set sets the member at a path.
func (d document) set(v any, path ...string) error {
	if len(path) > 1 {
		inner := document{}
		if d[path[0]].Kind() == '{' {
			if err := jsonv2.Unmarshal(d[path[0]], &inner); err != nil {
				return err
			}
		}
		if err := inner.set(v, path[1:]...); err != nil {
			return err
		}
		v = inner
	}
	b, err := jsonv2.Marshal(v)
	d[path[0]] = b
	return err
}

// setFlags sets the members, at paths such as delivery.lease_ms, whose flags were given.
func (d document) setFlags(flags *pflag.FlagSet, paths map[string]string) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		path, ok := paths[f.Name]
		if !ok || err != nil {
			return
		}
		var v any = f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			v = list.GetSlice()
		} else if t := f.Value.Type(); t == "int64" || t == "float64" {
			v = jsontext.Value(f.Value.String())
		}
		err = d.set(v, strings.Split(path, ".")...)
	})
	return err
}

// setFile sets a member to the JSON in a file.
func (a *app) setFile(d document, member, file string) error {
	b, err := a.readInput(file)
	if err != nil {
		return err
	}
	v := jsontext.Value(bytes.TrimSpace(b))
	if !v.IsValid() {
		return usagef("%s is not JSON", file)
	}
	return d.set(v, member)
}

// decode reads the document as a request.
func (d document) decode(v any) error {
	b, err := jsonv2.Marshal(d)
	if err == nil {
		err = wire.Decode(b, v)
	}
	if err != nil {
		return usagef("%w", err)
	}
	return nil
}

// json writes one value as one line.
func (a *app) json(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// wire writes one of the API's values as a line of JSON.
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

// list prints each item as a line of JSON, or as a row of a table whose header
// is separated by commas.
func list[T any](a *app, items []T, header string, row func(*T) []any) error {
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
	return a.table(strings.Split(header, ","), rows)
}

// show prints one value as JSON, or its fields, rows of a name and a value
// each, under the value's own name. It leaves out rows whose value is nil.
func (a *app) show(v any, what, name string, rows [][]any) error {
	if a.output == "json" {
		return a.wire(v)
	}
	rows = slices.DeleteFunc(rows, func(r []any) bool { return r[1] == nil })
	return writeTable(a.stdout, []string{strings.ToUpper(what), name}, rows)
}

// optional returns nil, so that show leaves it out, if text is empty.
func optional(text string) any { return orNull(text, text) }

// table writes rows under a header. Without a terminal there are no borders
// and nothing is cut, so that awk and grep find what they look for.
func (a *app) table(header []string, rows [][]any) error {
	for i := range header {
		header[i] = strings.ToUpper(header[i])
	}
	return writeTable(a.stdout, header, rows)
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
			progressbar.OptionEnableColorCodes(p.a.getenv("NO_COLOR") == ""))
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
