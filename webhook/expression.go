package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
)

// CEL expressions of webhooks and of a queue's push: filters, keys and mappings over JSON. The
// author of an expression is trusted to some degree, the sender of the JSON is not. So an
// expression is limited in size when it is compiled and in cost whenever it is evaluated, and so
// are the strings and the JSON that it produces.

// Limits of one expression. A unit of cost is about the cost of reading a field, or of searching
// ten bytes; a million take about a tenth of a second.
const (
	maxExpression = 8 << 10
	maxCost       = 1_000_000
	maxFields     = 256     // of an Object
	maxText       = 4 << 20 // the longest string that one call may make
	maxError      = 160     // of CEL's errors, which may contain a part of the JSON
)

// Strings is the type of a variable that has texts by name. Any JSON is a cel.DynType.
var Strings = cel.MapType(cel.StringType, cel.StringType)

// Env compiles expressions over some variables. It is safe for concurrent use.
type Env struct{ env *cel.Env }

// NewEnv returns an Env; it panics where a variable can't be one. Besides CEL's own functions its
// expressions have those on strings (join, split, replace, lowerAscii, …), base64, cel.bind, and
// optional fields: payload.?title.orValue('none').
func NewEnv(vars map[string]*cel.Type) *Env {
	opts := append([]cel.EnvOption{
		cel.OptionalTypes(), ext.Bindings(), ext.Encoders(), ext.Strings(),
		cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true),
		cel.RegexProgramSizeLimit(1000),
	}, boundedStrings()...)
	for name, t := range vars {
		opts = append(opts, cel.Variable(name, t))
	}
	env, err := cel.NewEnv(opts...)
	if err != nil {
		panic(err)
	}
	return &Env{env}
}

// boundedStrings replaces the two functions on strings whose result grows with the product of their
// arguments: CEL charges a call after it was made, when one on a payload of one megabyte could have
// taken all memory.
func boundedStrings() []cel.EnvOption {
	text, list, number := cel.StringType, cel.ListType(cel.StringType), cel.IntType
	str := func(v ref.Val) string { return string(v.(types.String)) }
	bounded := func(size int, make func() string) ref.Val {
		if size > maxText { // a new error each time: CEL writes into it where it happened
			return types.NewErr("a string would become longer than %d bytes", maxText)
		}
		return types.String(make())
	}
	join := func(a ...ref.Val) ref.Val {
		native, err := a[0].ConvertToNative(reflect.TypeFor[[]string]())
		if err != nil {
			return types.NewErr("join is of strings")
		}
		parts, sep := native.([]string), ""
		if len(a) > 1 {
			sep = str(a[1])
		}
		size := len(parts) * len(sep)
		for _, part := range parts {
			size += len(part)
		}
		return bounded(size, func() string { return strings.Join(parts, sep) })
	}
	replace := func(a ...ref.Val) ref.Val {
		s, from, to, n := str(a[0]), str(a[1]), str(a[2]), -1
		found := strings.Count(s, from)
		if len(a) > 3 {
			if n = int(a[3].(types.Int)); n >= 0 {
				found = min(found, n)
			}
		}
		size := len(s) + found*(len(to)-len(from))
		return bounded(size, func() string { return strings.Replace(s, from, to, n) })
	}
	overload := func(name string, do func(...ref.Val) ref.Val, args ...*cel.Type) cel.FunctionOpt {
		return cel.MemberOverload(name, args, text, cel.FunctionBinding(do))
	}
	return []cel.EnvOption{
		cel.Function("join", overload("list_join", join, list),
			overload("list_join_string", join, list, text)),
		cel.Function("replace", overload("string_replace_string_string", replace, text, text, text),
			overload("string_replace_string_string_int", replace, text, text, text, number)),
	}
}

// FieldError says which field's expression was refused when it was compiled, or failed when it was
// evaluated, and why.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	program cel.Program
	gives   []*cel.Type
	ast     *cel.Ast
}

// reads reports whether the expression mentions a variable.
func (p *Program) reads(name string) (found bool) {
	ast.PostOrderVisit(p.ast.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		found = found || e.Kind() == ast.IdentKind && e.AsIdent() == name
	}))
	return found
}

// Compile checks an expression's syntax and types. gives are the types that its result may have:
// any (cel.DynType), or some of those in typeNames. An error has line and column, from 1.
func (e *Env) Compile(text string, gives ...*cel.Type) (*Program, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("is empty")
	}
	if len(text) > maxExpression {
		return nil, fmt.Errorf("has %d bytes, at most %d are taken", len(text), maxExpression)
	}
	checked, issues := e.env.Compile(text)
	if list := issues.Errors(); len(list) > 0 {
		at := list[0].Location
		return nil, fmt.Errorf("line %d, column %d: %s",
			max(at.Line(), 1), max(at.Column(), 0)+1, event.Line(list[0].Message, maxError))
	}
	t := checked.OutputType()
	if !t.IsExactType(cel.DynType) && !slices.ContainsFunc(gives, func(want *cel.Type) bool {
		return want == cel.DynType || t.IsExactType(want)
	}) {
		return nil, fmt.Errorf("must give %s, this gives %s", namesOf(gives), t)
	}
	// OptOptimize compiles constant patterns and builds constant lists once.
	p, err := e.env.Program(checked, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, errors.New(event.Line(err.Error(), maxError))
	}
	return &Program{p, gives, checked}, nil
}

var typeNames = map[*cel.Type]string{
	cel.BoolType: "true or false", cel.StringType: "a string (string(…) makes one)",
	cel.IntType: "a whole number", cel.UintType: "a whole number",
	cel.DoubleType: "a number", cel.TimestampType: "a timestamp",
}

// namesOf names types for people.
func namesOf(all []*cel.Type) string {
	var names []string
	for _, t := range all {
		if name := typeNames[t]; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// maxExact is the largest float up to which every whole number is one.
const maxExact = 1 << 53

// Value evaluates an expression that gives a bool, a string or a whole number, an int64 or uint64.
func (p *Program) Value(vars map[string]any) (any, error) {
	v, err := p.eval(vars)
	if err != nil {
		return nil, err
	}
	f, ok := v.(types.Double)
	whole := ok && math.Abs(float64(f)) <= maxExact && float64(f) == math.Trunc(float64(f))
	switch {
	case slices.ContainsFunc(p.gives, func(t *cel.Type) bool { return v.Type() == t }):
		return v.Value(), nil
	case whole && slices.Contains(p.gives, cel.IntType):
		return int64(f), nil // a whole number as some JSON writers write it: 5.0
	}
	return nil, fmt.Errorf("it must give %s, and gave %s", namesOf(p.gives), kindOf(v))
}

// errMissing is wrapped by the error of an expression that reads a field that an object lacks.
var errMissing = errors.New("no such key")

// timeOf reads an RFC 3339 string, a Unix time in seconds or a timestamp.
func timeOf(v ref.Val) (at time.Time, ok bool) {
	seconds := 0.0
	switch v := v.(type) {
	case types.String:
		at, err := time.Parse(time.RFC3339, string(v))
		return at, err == nil
	case types.Timestamp:
		return v.Time, true
	case types.Int:
		seconds = float64(v)
	case types.Uint:
		seconds = float64(v)
	case types.Double:
		seconds = float64(v)
	default:
		return at, false
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)), seconds >= 0 && seconds <= maxUnix
}

func (p *Program) eval(vars map[string]any) (ref.Val, error) {
	v, _, err := p.program.Eval(vars)
	if err == nil {
		return v, nil
	}
	text := event.Line(err.Error(), maxError)
	rest, missing := strings.CutPrefix(text, errMissing.Error())
	switch {
	case missing:
		return nil, fmt.Errorf("%w%s", errMissing, rest)
	case strings.Contains(text, "cost limit exceeded"):
		return nil, fmt.Errorf("it takes more than %d steps", maxCost)
	}
	return nil, errors.New(text)
}

// kindOf names a value's type for people.
func kindOf(v ref.Val) string {
	name := v.Type().TypeName()
	return cmp.Or(map[string]string{
		"null_type": "null", "bool": "a boolean", "int": "a number", "uint": "a number",
		"double": "a number", "optional_type": "an optional value (orValue(…) ends it)",
	}[name], "a "+name)
}

// Object makes a JSON object, each field by an expression of its own.
type Object struct {
	name   string
	fields map[string]*Program
}

// CompileObject compiles the expressions of the fields of an object that a field with this name
// makes. An error is a *FieldError.
func (e *Env) CompileObject(name string, fields map[string]string) (*Object, error) {
	if len(fields) > maxFields {
		return nil, &FieldError{name,
			fmt.Errorf("has %d fields, at most %d are taken", len(fields), maxFields)}
	}
	o := &Object{name, map[string]*Program{}}
	for _, field := range slices.Sorted(maps.Keys(fields)) { // the same error each time
		p, err := e.Compile(fields[field], cel.DynType)
		if err != nil {
			return nil, &FieldError{name + "." + field, err}
		}
		o.fields[field] = p
	}
	return o, nil
}

// ErrTooLarge is the error of JSON that would exceed its limit, errTooDeep that of JSON that is
// nested too deep.
var (
	ErrTooLarge = errors.New("what it gives is too large")
	errTooDeep  = fmt.Errorf("nested deeper than %d", transcode.MaxDepth)
)

// Eval returns the object as JSON of at most limit bytes, its fields sorted by name. A field whose
// expression gives optional.none() is left out. Bytes become base64, timestamps RFC 3339, durations
// seconds ("3.5s"). An error is a *FieldError.
func (o *Object) Eval(vars map[string]any, limit int) ([]byte, error) {
	out := map[string]any{}
	c := converter{left: limit}
	for _, field := range slices.Sorted(maps.Keys(o.fields)) {
		v, err := o.fields[field].eval(vars)
		if none, ok := v.(*types.Optional); ok && !none.HasValue() {
			continue
		}
		if err == nil {
			out[field], err = c.native(v, 1)
		}
		switch {
		case errors.Is(err, ErrTooLarge):
			return nil, &FieldError{o.name, err}
		case err != nil:
			return nil, &FieldError{o.name + "." + field, err}
		}
	}
	b, err := json.Marshal(out, json.Deterministic(true))
	switch {
	case err != nil:
		return nil, &FieldError{o.name, errors.New("it gives a string that is not UTF-8")}
	case len(b) > limit:
		return nil, &FieldError{o.name, ErrTooLarge}
	}
	return b, nil
}

// converter converts the values of expressions to Go's, while the JSON of the result can have at
// most the number of bytes that are left.
type converter struct{ left int }

func (c *converter) native(v ref.Val, depth int) (any, error) {
	if c.left--; c.left < 0 {
		return nil, ErrTooLarge
	}
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool, types.Int, types.Uint:
		return v.Value(), nil
	case types.String:
		c.left -= len(v)
		return string(v), nil
	case types.Bytes: // they become base64
		c.left -= len(v)
		return []byte(v), nil
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, errors.New("it gives a number that JSON does not have (infinite, or none)")
		}
		return float64(v), nil
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + "s", nil
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return c.native(v.GetValue(), depth)
	}
	if depth > transcode.MaxDepth {
		return nil, errTooDeep
	}
	var err error
	switch v := v.(type) {
	case traits.Mapper:
		out := map[string]any{}
		for it := v.Iterator(); err == nil && it.HasNext() == types.True; {
			key, ok := it.Next().(types.String)
			if !ok {
				return nil, errors.New(
					"it gives a map with a key that is not a string, which JSON does not have")
			}
			c.left -= len(key)
			out[string(key)], err = c.native(v.Get(key), depth+1)
		}
		return out, err
	case traits.Lister:
		out := []any{}
		for it := v.Iterator(); err == nil && it.HasNext() == types.True; {
			var item any
			item, err = c.native(it.Next(), depth+1)
			out = append(out, item)
		}
		return out, err
	}
	return nil, fmt.Errorf("it gives %s, which JSON does not have", kindOf(v))
}

// ParseJSON reads JSON for expressions: map[string]any, []any, string, bool, nil, int64, uint64 for
// a whole number that is too large for that, else float64; so that string(payload.number) is the
// number as it was written. A name twice in an object, bad UTF-8 and anything after the value are
// errors.
func ParseJSON(text []byte) (v any, err error) {
	if transcode.TooDeep(text, transcode.MaxDepth) {
		return nil, errTooDeep
	}
	err = json.Unmarshal(text, &v, json.WithUnmarshalers(json.UnmarshalFromFunc(readNumber)))
	return v, err
}

func readNumber(dec *jsontext.Decoder, to *any) error {
	if dec.PeekKind() != '0' {
		return errors.ErrUnsupported // the usual way
	}
	number, err := dec.ReadValue()
	if err != nil {
		return err
	}
	text := string(number)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		*to = n
	} else if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		*to = n
	} else {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil { // out of range
			f = math.Copysign(math.MaxFloat64, f)
		}
		*to = f
	}
	return nil
}
