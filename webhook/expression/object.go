package expression

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxFields is how many fields an Object may have.
const MaxFields = 256

// Object makes a JSON object, each field by an expression of its own.
type Object struct {
	fields []field // sorted by name
}

type field struct {
	name    string
	quoted  []byte // "name":
	program *Program
}

// CompileObject compiles the expressions of an object's fields. An error is an
// *Error whose Field tells which.
func (e *Env) CompileObject(fields map[string]string) (*Object, error) {
	if len(fields) > MaxFields {
		return nil, &Error{Text: fmt.Sprintf("has %d fields, at most %d are taken", len(fields), MaxFields)}
	}
	o := &Object{}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // so that the same mistake is told each time
	for _, name := range names {
		quoted, err := jsontext.AppendQuote(nil, name)
		if err != nil {
			return nil, &Error{Field: name, Text: "must be UTF-8"}
		}
		p, err := e.Compile(fields[name], JSON)
		if err != nil {
			err.(*Error).Field = name
			return nil, err
		}
		o.fields = append(o.fields, field{name, append(quoted, ':'), p})
	}
	return o, nil
}

// EvalError says which field's expression failed, and why.
type EvalError struct {
	Field string
	Err   error
}

func (e *EvalError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *EvalError) Unwrap() error { return e.Err }

// Eval returns the object as JSON of at most limit bytes, its fields sorted by
// name. A field whose expression gives optional.none() is left out. An error is
// an *EvalError, or ErrTooLarge.
func (o *Object) Eval(vars Vars, limit int) ([]byte, error) {
	out := append(make([]byte, 0, 256), '{')
	for i := range o.fields {
		f := &o.fields[i]
		begun := len(out)
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, f.quoted...)
		var present bool
		var err error
		out, present, err = f.program.AppendJSON(out, vars, limit)
		if errors.Is(err, ErrTooLarge) {
			return nil, err
		}
		if err != nil {
			return nil, &EvalError{f.name, err}
		}
		if !present {
			out = out[:begun]
		}
	}
	if out = append(out, '}'); len(out) > limit {
		return nil, ErrTooLarge
	}
	return out, nil
}
