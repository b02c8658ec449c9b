// Package expression compiles and evaluates the CEL expressions that users give
// to webhooks and to a queue's push: filters, keys and mappings over JSON.
//
// JSON comes in as Value makes it: whole numbers are int (or uint, where they
// are too large), others double, so that string(payload.number) is the number as
// it was written. What a mapping gives goes out as JSON again.
//
// Whoever may save an expression is trusted to some degree, who sends the JSON
// is not. So an expression is bounded three times: in size and by an estimate of
// its cost when it is compiled, and by its real cost whenever it is evaluated.
package expression

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
)

// Limits of one expression. A unit of cost is about what reading a field costs,
// or looking through ten bytes; a million take about a tenth of a second.
const (
	MaxBytes = 8 << 10
	MaxCost  = 1_000_000
)

// Type is what a variable has, or what an expression gives.
type Type uint8

const (
	JSON      Type = iota // anything that JSON can have: what Value gives
	Bool                  // bool
	String                // string
	Int                   // int64
	Timestamp             // time.Time
	Strings               // map[string]string
)

func (t Type) cel() *cel.Type {
	switch t {
	case Bool:
		return cel.BoolType
	case String:
		return cel.StringType
	case Int:
		return cel.IntType
	case Timestamp:
		return cel.TimestampType
	case Strings:
		return cel.MapType(cel.StringType, cel.StringType)
	}
	return cel.DynType
}

// String says the type in words, with an article.
func (t Type) String() string {
	return [...]string{"any JSON", "true or false", "a string", "a whole number", "a timestamp", "a map of strings"}[t]
}

// Variable is what expressions of an Env can be about.
type Variable struct {
	Name string
	Type Type
}

// Vars are the variables' values, one for each of the Env's.
type Vars map[string]any

// Env compiles expressions over some variables. It is for use by any number of
// goroutines.
type Env struct{ env *cel.Env }

// New returns an Env. Besides CEL's own functions its expressions have those on
// strings (join, split, replace, lowerAscii, …), base64, cel.bind, and optional
// fields: payload.?title.orValue('none').
func New(vars ...Variable) (*Env, error) {
	opts := []cel.EnvOption{
		cel.OptionalTypes(), ext.Bindings(), ext.Encoders(), ext.Strings(), boundedStrings(),
		cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true),
		cel.RegexProgramSizeLimit(1000),
	}
	for _, v := range vars {
		opts = append(opts, cel.Variable(v.Name, v.Type.cel()))
	}
	env, err := cel.NewEnv(opts...)
	if err != nil {
		return nil, fmt.Errorf("expressions: %w", err)
	}
	return &Env{env}, nil
}

// Error says why an expression was refused when it was compiled.
type Error struct {
	Field        string // of an Object: whose expression it is; else ""
	Line, Column int    // from 1; 0 where it is about the whole expression
	Text         string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Text)
}

// Program is a compiled expression. It is for use by any number of goroutines.
type Program struct {
	program cel.Program
	gives   Type
}

// Compile checks an expression's syntax, types and cost. gives is what it has to
// give: JSON, Bool, String or Int. An error is an *Error.
func (e *Env) Compile(text string, gives Type) (*Program, error) {
	if strings.TrimSpace(text) == "" {
		return nil, &Error{Text: "is empty"}
	}
	if len(text) > MaxBytes {
		return nil, &Error{Text: fmt.Sprintf("has %d bytes, at most %d are taken", len(text), MaxBytes)}
	}
	ast, issues := e.env.Compile(text)
	if list := issues.Errors(); len(list) > 0 {
		first := list[0]
		return nil, &Error{Line: max(first.Location.Line(), 1), Column: max(first.Location.Column(), 0) + 1, Text: clip(first.Message)}
	}
	if err := issues.Err(); err != nil {
		return nil, &Error{Text: clip(err.Error())}
	}
	if t := ast.OutputType(); gives != JSON && !t.IsExactType(cel.DynType) && !t.IsExactType(gives.cel()) {
		return nil, &Error{Text: fmt.Sprintf("must give %s, this gives %s%s", gives, t, hint(gives))}
	}
	cost, err := e.env.EstimateCost(ast, sizes{})
	if err != nil {
		return nil, &Error{Text: clip(err.Error())}
	}
	if cost.Max > MaxCost {
		return nil, &Error{Text: fmt.Sprintf("may cost too much: it goes too often through lists within lists (with %d elements each it could take more than %d steps)", assumedElements, MaxCost)}
	}
	// OptOptimize compiles constant patterns and builds constant lists once.
	p, err := e.env.Program(ast, cel.CostLimit(MaxCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, &Error{Text: clip(err.Error())}
	}
	return &Program{p, gives}, nil
}

func hint(gives Type) string {
	if gives == String {
		return "; string(…) makes one"
	}
	return ""
}

// Bool evaluates an expression that gives true or false.
func (p *Program) Bool(vars Vars) (bool, error) {
	v, err := p.eval(vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, fmt.Errorf("it must give true or false, and gave %s", kind(v))
	}
	return bool(b), nil
}

// Text evaluates an expression that gives a string. A number is none: 1 and 1.0
// would be told apart or not depending on who wrote the JSON.
func (p *Program) Text(vars Vars) (string, error) {
	v, err := p.eval(vars)
	if err != nil {
		return "", err
	}
	s, ok := v.(types.String)
	if !ok {
		return "", fmt.Errorf("it must give a string, and gave %s%s", kind(v), hint(String))
	}
	return string(s), nil
}

// Int evaluates an expression that gives a whole number.
func (p *Program) Int(vars Vars) (int64, error) {
	v, err := p.eval(vars)
	if err != nil {
		return 0, err
	}
	switch n := v.(type) {
	case types.Int:
		return int64(n), nil
	case types.Double: // a whole number as some JSON writers write it: 5.0
		if i := int64(n); float64(i) == float64(n) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("it must give a whole number, and gave %s", kind(v))
}

// AppendJSON evaluates an expression and appends what it gives as JSON, at most
// about limit bytes in all. Bytes become base64, timestamps RFC 3339, durations
// seconds ("3.5s"); the members of an object are sorted. present is false, and
// nothing appended, where it gives optional.none().
func (p *Program) AppendJSON(dst []byte, vars Vars, limit int) (out []byte, present bool, err error) {
	v, err := p.eval(vars)
	if err != nil {
		return dst, false, err
	}
	if o, ok := v.(*types.Optional); ok && !o.HasValue() {
		return dst, false, nil
	}
	w := writer{out: dst, limit: limit}
	if err := w.value(v, 1); err != nil {
		return dst, false, err
	}
	return w.out, true, nil
}

func (p *Program) eval(vars Vars) (ref.Val, error) {
	v, _, err := p.program.Eval(map[string]any(vars))
	if err == nil {
		return v, nil
	}
	if strings.Contains(err.Error(), "cost limit exceeded") {
		return nil, fmt.Errorf("it takes more than %d steps", MaxCost)
	}
	if strings.HasPrefix(err.Error(), "no such key") {
		return nil, missing(clip(err.Error()))
	}
	return nil, errors.New(clip(err.Error()))
}

// ErrMissing is what an evaluation fails with (errors.Is) where an object lacks a
// member that the expression names.
var ErrMissing = errors.New("no such member")

type missing string

func (m missing) Error() string        { return string(m) }
func (m missing) Is(target error) bool { return target == ErrMissing }

// kind names a value's type for people.
func kind(v ref.Val) string {
	switch v.(type) {
	case types.Null:
		return "null"
	case types.Bool:
		return "a boolean"
	case types.Int, types.Uint, types.Double:
		return "a number"
	case types.String:
		return "a string"
	case *types.Optional:
		return "an optional value (orValue(…) ends it)"
	}
	return "a " + v.Type().TypeName()
}

// clip keeps an error short and printable: CEL's may have a piece of the JSON in
// them.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	n := 0
	for i := range s {
		if n++; n > 160 {
			return s[:i] + "…"
		}
	}
	return s
}
