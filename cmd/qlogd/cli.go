package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/durations"
)

const (
	defaultAddr    = "http://127.0.0.1:7070"
	defaultDataDir = "./qlogd-data"
)

// command builds a command of an app.
type command func(a *app) *cobra.Command

// request is one run of a command. Remote commands have a client.
type request struct {
	*app
	*client.Client
	ctx   context.Context
	args  []string
	flags *pflag.FlagSet
}

// group is a command that only holds others. Without one of them it prints their list.
func group(name string, subs ...command) command {
	return func(a *app) *cobra.Command {
		cmd := describe(name)
		cmd.Args = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			meant := ""
			if like := meantBy(c, args[0]); like != "" {
				meant = " (did you mean " + like + "?)"
			}
			return usagef("unknown command %.64q for %s%s; see %s --help",
				args[0], c.CommandPath(), meant, c.CommandPath())
		}
		cmd.RunE = func(c *cobra.Command, _ []string) error {
			_ = c.Help()
			return &exitError{code: exitUsage}
		}
		for _, sub := range subs {
			cmd.AddCommand(sub(a))
		}
		return cmd
	}
}

// none are the flags of a command without any.
type none struct{}

// plain returns a command without --output. Its flags are those that an F declares or,
// without a method flags, the fields of an F.
func plain[F any](name string, do func(c request, f *F) error, more ...flag) command {
	return func(a *app) *cobra.Command {
		cmd, f := describe(name), new(F)
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.parsed = true
			clearNotGiven(cmd, f)
			return do(request{app: a, ctx: cmd.Context(), args: args, flags: cmd.Flags()}, f)
		}
		if own, ok := any(f).(interface{ flags(*app, *cobra.Command) }); ok {
			own.flags(a, cmd)
		} else {
			fields(cmd, f)
		}
		for _, declare := range more {
			declare(a, cmd)
		}
		a.completions(name, cmd)
		return cmd
	}
}

// local returns a command that needs no server.
func local[F any](name string, do func(c request, f *F) error, more ...flag) command {
	return plain(name, do, append(more, func(a *app, cmd *cobra.Command) {
		outputFlag(cmd, &a.output, "table", "json")
	})...)
}

// remote returns a command that calls a server.
func remote[F any](name string, do func(c request, f *F) error, more ...flag) command {
	return local(name, func(c request, f *F) error {
		return c.ask(func(c request) error { return do(c, f) })
	}, append(more, (*app).addrFlag, (*app).authFlags, (*app).contextFlag)...)
}

// flag declares a flag of a command, or several, or a rule for them.
type flag = func(a *app, cmd *cobra.Command)

// repeated are the values of a flag that is given several times.
type repeated []string

// opt declares a flag of a variable, whose value is the default. A name may have a letter:
// "file|f".
func opt(cmd *cobra.Command, to any, name string) {
	name, letter, _ := strings.Cut(name, "|")
	f, text := cmd.Flags(), flagText(cmd, name)
	switch v := to.(type) {
	case *string:
		f.StringVarP(v, name, letter, *v, text)
	case *bool:
		f.BoolVarP(v, name, letter, *v, text)
	case *int:
		f.IntVarP(v, name, letter, *v, text)
	case *int64:
		f.Int64VarP(v, name, letter, *v, text)
	case *uint64:
		f.Uint64VarP(v, name, letter, *v, text)
	case *float64:
		f.Float64VarP(v, name, letter, *v, text)
	case *time.Duration:
		if own := f.VarPF((*duration)(v), name, letter, text); *v == 0 {
			own.DefValue = "0" // which help leaves out
		}
	case *[]string:
		f.StringSliceVarP(v, name, letter, *v, text)
	case *repeated:
		f.StringArrayVarP((*[]string)(v), name, letter, nil, text)
	case *map[string]string:
		f.StringToStringVarP(v, name, letter, *v, text)
	default:
		panic(fmt.Sprintf("flag %s of type %T", name, to))
	}
}

// fields declares a flag for each exported field of a struct. Its name is the field's, as in
// tls-key for TLSKey, unless there is a tag: flag:"name". Its default is the field's value,
// unless there is a tag: default:"value". A pointer is nil unless the flag is given.
func fields(cmd *cobra.Command, of any) {
	for _, f := range flagFields(of) {
		to := f.value
		if to.Kind() == reflect.Pointer {
			to.Set(reflect.New(to.Type().Elem()))
			to = to.Elem()
		}
		opt(cmd, to.Addr().Interface(), f.name)
		as := f.tag.Get("as")
		if k, ok := kinds[as]; ok {
			own := cmd.Flags().Lookup(f.name)
			own.Value = kinded{own.Value, k.name}
			if k.older != "" {
				o := older{cmd.Flags(), f.name, as}
				cmd.Flags().VarPF(o, f.name+k.older, "", "").Hidden = true
			}
		}
		if text, ok := f.tag.Lookup("default"); ok {
			setDefault(cmd, f.name, text)
		}
	}
}

// kinds are those of the values of flags that set a member of a request, by the tag "as".
var kinds = map[string]struct {
	name  string        // in help
	unit  time.Duration // of the member
	older string        // the end of the name of the flag's earlier form
}{
	"int": {name: "int"}, "float": {name: "float"}, "s": {"duration", time.Second, "-seconds"},
	"ms": {"duration", time.Millisecond, "-ms"}, "ms list": {"durations", time.Millisecond, "-ms"},
}

// kinded is a flag of another kind, as help prints it.
type kinded struct {
	pflag.Value
	kind string
}

func (k kinded) Type() string { return k.kind }

// clearNotGiven sets the pointers of a struct whose flags are not given to nil.
func clearNotGiven(cmd *cobra.Command, of any) {
	for _, f := range flagFields(of) {
		if f.value.Kind() == reflect.Pointer && !cmd.Flags().Changed(f.name) {
			f.value.SetZero()
		}
	}
}

// flagField is a field of a struct that is a flag.
type flagField struct {
	name  string
	tag   reflect.StructTag
	value reflect.Value
}

func flagFields(of any) (all []flagField) {
	v := reflect.ValueOf(of).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		name := cmp.Or(f.Tag.Get("flag"),
			strings.ToLower(wordsRE.ReplaceAllString(f.Name, "$1$3-$2$4")))
		if !f.Anonymous && f.IsExported() && name != "-" {
			all = append(all, flagField{name, f.Tag, v.FieldByIndex(f.Index)})
		}
	}
	return all
}

var wordsRE = regexp.MustCompile("([a-z])([A-Z])|([A-Z]+)([A-Z][a-z])")

// setDefault sets the default of a flag.
func setDefault(cmd *cobra.Command, name, text string) {
	f := cmd.Flags().Lookup(name)
	if err := f.Value.Set(text); err != nil {
		panic(err)
	}
	f.DefValue = f.Value.String()
}

// exclusive refuses two of some flags.
func exclusive(names ...string) flag {
	return func(_ *app, cmd *cobra.Command) {
		cmd.MarkFlagsMutuallyExclusive(names...) // for completion; its error would be cobra's
		before := cmd.PreRunE
		cmd.PreRunE = func(c *cobra.Command, args []string) error {
			given := slices.DeleteFunc(slices.Clone(names),
				func(name string) bool { return !c.Flags().Changed(name) })
			if len(given) > 1 {
				return usagef("--%s and --%s exclude each other", given[0], given[1])
			}
			if before == nil {
				return nil
			}
			return before(c, args)
		}
	}
}

// choice is a flag that is one of some words.
type choice struct {
	to *string
	of []string
}

func (c choice) String() string { return *c.to }
func (c choice) Type() string   { return strings.Join(c.of, "|") }
func (c choice) Set(v string) error {
	if !slices.Contains(c.of, v) {
		return errors.New("must be " + strings.Join(c.of, " or "))
	}
	*c.to = v
	return nil
}

// outputFlag declares --output with some choices, the first of which is the default.
func outputFlag(cmd *cobra.Command, to *string, of ...string) {
	*to = of[0]
	cmd.Flags().VarP(choice{to, of}, "output", "o", "output format: "+strings.Join(of, " or "))
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
}

// destroyFlags declares --yes and --dry-run.
func (a *app) destroyFlags(cmd *cobra.Command) {
	opt(cmd, &a.yes, "yes|y")
	opt(cmd, &a.dryRun, "dry-run")
}

// confirmed asks on a terminal whether to do something destructive, and returns nil for
// yes. Without a terminal only --yes is a yes: a script must not destroy by omission.
func (a *app) confirmed(what string) error {
	if a.yes {
		return nil
	}
	if !terminal(a.stdin) {
		return usagef("%s: say --yes, or --dry-run to look first", what)
	}
	fmt.Fprintf(a.stderr, "%s. Continue? [y/N] ", what)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n')
	if s := strings.ToLower(strings.TrimSpace(line)); s != "y" && s != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

// destroy does something destructive once it is confirmed, and prints done unless that
// is empty; with --dry-run it only prints what it would do.
func (a *app) destroy(what, done string, do func() error) error {
	if a.dryRun {
		_, err := fmt.Fprintln(a.stdout, "would", what)
		return err
	}
	if err := a.confirmed(what); err != nil {
		return err
	}
	if err := do(); err != nil || done == "" {
		return err
	}
	return a.say(nil, "%s", done)
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

// decode reads a request from a JSON file, if there is one, and then from the flags that are
// given: each sets the member that its field's tag names, as in sets:"delivery.lease_ms".
func (c request) decode(file string, flags, to any) error {
	if file != "" {
		text, err := c.readInput(file)
		if err != nil {
			return err
		}
		if err := wire.Decode(text, to); err != nil {
			return usagef("%s: %w", file, err)
		}
	}
	c.setBy = map[string]string{}
	for _, f := range flagFields(flags) {
		path := f.tag.Get("sets")
		if path == "" || !c.flags.Changed(f.name) {
			continue
		}
		value, err := c.member(f.value.Interface(), f.tag.Get("as"))
		if err != nil {
			return usagef("--%s: %w", f.name, err)
		}
		c.setBy[path] = f.name
		for _, name := range slices.Backward(strings.Split(path, ".")) {
			value = map[string]any{name: value}
		}
		text, err := wire.Marshal(value)
		if err := cmp.Or(err, wire.Decode(text, to)); err != nil {
			return usagef("%w", err)
		}
	}
	return nil
}

// member returns a flag's value for JSON; as says what a text is.
func (c request) member(v any, as string) (any, error) {
	text, _ := v.(string)
	switch {
	case as == "int":
		return wholeNumber(text)
	case as == "ms" || as == "s":
		return inUnit(text, as)
	case as == "float":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n-n != 0 {
			return nil, errors.New("must be a number")
		}
		return n, nil
	case as == "number or text":
		if n, err := strconv.Atoi(text); err == nil {
			return n, nil
		}
	case as == "fields":
		expressions := map[string]string{}
		for _, pair := range v.(repeated) {
			name, expression, ok := strings.Cut(pair, "=")
			if !ok || name == "" {
				return nil, errors.New("must be FIELD=EXPRESSION")
			}
			expressions[name] = expression
		}
		return expressions, nil
	case as != "" && text == "":
		return nil, nil
	case as == "ms list":
		var list []int64
		for _, item := range items(text) {
			n, err := inUnit(item, as)
			if err != nil {
				return nil, err
			}
			list = append(list, n)
		}
		return list, nil
	case as == "file":
		b, err := c.readInput(text)
		if err == nil && !jsontext.Value(b).IsValid() {
			err = fmt.Errorf("%s is not JSON", text)
		}
		return jsontext.Value(b), err
	}
	return v, nil
}

func wholeNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errors.New("must be a whole number")
	}
	return n, nil
}

// duration is a flag of a duration, which may be in days and weeks.
type duration time.Duration

func (d *duration) String() string { return time.Duration(*d).String() }
func (d *duration) Type() string   { return "duration" }
func (d *duration) Set(text string) error {
	v, err := durations.Parse(text)
	if err == nil {
		*d = duration(v)
	}
	return err
}

// inUnit returns a duration as a whole number of a member's unit.
func inUnit(text, as string) (int64, error) {
	d, err := durations.Parse(text)
	unit := kinds[as].unit
	if err == nil && d%unit != 0 {
		err = fmt.Errorf("%.64q is not a multiple of %v", text, unit)
	}
	return int64(d / unit), err
}

// items returns those of a text, without spaces and empty ones.
func items(text string) (all []string) {
	for item := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		all = append(all, strings.TrimSpace(item))
	}
	return all
}

// older is the earlier form of a flag of a duration, or of a list of them: its value is a whole
// number of a unit.
type older struct {
	flags    *pflag.FlagSet
	name, as string
}

func (o older) String() string { return "" }
func (o older) Type() string   { return "int" }
func (o older) Set(text string) error {
	unit, isList := strings.CutSuffix(o.as, " list")
	values := []string{text}
	if isList {
		values = items(text)
	}
	for i, v := range values {
		n, err := wholeNumber(v)
		if err != nil && isList {
			return errors.New("must be a list of whole numbers")
		} else if err != nil {
			return err
		}
		values[i] = strconv.FormatInt(n, 10) + unit
	}
	return o.flags.Set(o.name, strings.Join(values, ","))
}
