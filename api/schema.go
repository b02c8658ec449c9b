package api

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/qlogd/qlogd/event"
)

// A schema and the payloads come from clients: a schema may refer to itself in ways that take
// for ever, or break the library. So compiling and validating have a budget of evaluated
// subschemas, panics are caught, and nothing is loaded from elsewhere.

// errBudget ends a validation that takes too many steps.
var errBudget = errors.New("takes too many steps to check")

// schema is a compiled message_schema. It serves one validation at a time,
// because the budget is counted in it.
type schema struct {
	compiled *jsonschema.Schema
	left     int // steps
	enum     int // the most values of an enum, or names of a required
}

// compileSchema compiles a JSON Schema (2020-12).
func compileSchema(text []byte) (sc *schema, err error) {
	defer func() {
		if v := recover(); v != nil {
			sc, err = nil, fmt.Errorf("cannot be compiled: %v", v)
		}
	}()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, errors.New("must be an object")
	}
	sc = &schema{}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.RegisterVocabulary(&jsonschema.Vocabulary{URL: "qlogd:budget", Compile: func(_ *jsonschema.CompilerContext, obj map[string]any) (jsonschema.SchemaExt, error) {
		for _, keyword := range []string{"enum", "required"} {
			if list, ok := obj[keyword].([]any); ok {
				sc.enum = max(sc.enum, len(list))
			}
		}
		return &step{sc, cost(obj)}, nil
	}})
	c.AssertVocabs()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	sc.left = 1 << 20 // compiling validates against the metaschema
	sc.compiled, err = c.Compile(schemaURL)
	return sc, err
}

const schemaURL = "qlogd:message_schema"

type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("references to the outside are off")
}

// step is in every subschema and counts its evaluations. The library comes to
// it last, and not at all where a type or an enum does not fit, so each
// evaluation pays for those below it as well.
type step struct {
	schema *schema
	cost   int
}

func (e *step) Validate(*jsonschema.ValidatorContext, any) {
	if e.schema.left -= e.cost * e.schema.weight(); e.schema.left < 0 {
		panic(errBudget)
	}
}

// weight is the cost of an evaluation that does not go into others.
func (sc *schema) weight() int { return 1 + sc.enum/8 }

// cost is how many others an evaluation may go into for the same value.
func cost(obj map[string]any) int {
	n := 1
	for _, v := range obj {
		switch v := v.(type) {
		case []any:
			n += len(v)
		case map[string]any:
			n++
		case string:
			n += len(v) / 64 // a pattern
		}
	}
	return n
}

// nodes counts the values in a JSON value.
func nodes(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += nodes(e)
		}
	case map[string]any:
		for _, e := range v {
			n += nodes(e)
		}
	}
	return n
}

// validate checks one JSON payload: why it does not match, "" if it does, and where in it.
func (sc *schema) validate(payload []byte) (where, why string, err error) {
	defer func() {
		if v := recover(); v == errBudget {
			where, why, err = "", errBudget.Error(), nil
		} else if v != nil {
			where, why, err = "", "", fmt.Errorf("message_schema: %v", v)
		}
	}()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return "", "is not JSON", nil
	}
	sc.left = 200_000 + 2*len(payload)
	if nodes(doc)*sc.weight() > sc.left {
		return "", errBudget.Error(), nil
	}
	err = sc.compiled.Validate(doc)
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return "", "", err
	}
	for len(ve.Causes) > 0 {
		ve = ve.Causes[0]
	}
	for _, tok := range ve.InstanceLocation {
		where += "/" + pointer.Replace(tok)
	}
	why = ve.Error()
	if head, rest, ok := strings.Cut(why, "\n"); ok && strings.HasPrefix(head, "jsonschema") {
		why = strings.TrimLeft(rest, "\n- ")
	}
	return where, why, nil
}

// checkSchema refuses a schema that cannot be used.
func checkSchema(field string, text []byte) error {
	if len(text) > event.MaxSchema {
		return bad(field, "%s must be at most %d bytes", field, event.MaxSchema)
	}
	if _, err := compileSchema(text); err != nil {
		why := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), schemaURL, "")), " ")
		return bad(field, "%s is not a JSON Schema (2020-12): %s", field, clip(why, 200))
	}
	return nil
}

// schemaCache keeps the compiled message_schema of each queue.
type schemaCache struct {
	mu     sync.Mutex
	queues map[string]*lazySchema
}

// lazySchema is compiled when it is first used.
type lazySchema struct {
	revision uint64 // of the queue's policy
	text     []byte

	mu       sync.Mutex // a schema serves one validation at a time
	compiled *schema
}

// check validates payloads against the queue's message_schema, if it has one. payloads returns
// them one by one; a mismatch has its index.
func (c *schemaCache) check(v *event.QueueView, payloads func(i int) (payload []byte, binary, ok bool)) error {
	if len(v.Policy.MessageSchema) == 0 {
		return nil
	}
	c.mu.Lock()
	l := c.queues[v.Name]
	if l == nil || l.revision != v.Revision {
		if c.queues == nil || len(c.queues) > 10_000 {
			c.queues = map[string]*lazySchema{} // drops those of deleted queues
		}
		l = &lazySchema{revision: v.Revision, text: bytes.Clone(v.Policy.MessageSchema)}
		c.queues[v.Name] = l
	}
	c.mu.Unlock()
	return l.check("the queue's message_schema", payloads)
}

// one is one JSON payload to check.
func one(payload []byte) func(int) ([]byte, bool, bool) {
	return func(i int) ([]byte, bool, bool) { return payload, false, i == 0 }
}

// check validates payloads; what names the schema in errors.
func (l *lazySchema) check(what string, payloads func(i int) (payload []byte, binary, ok bool)) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.compiled == nil {
		if l.compiled, err = compileSchema(l.text); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	for i := 0; ; i++ {
		payload, binary, ok := payloads(i)
		if !ok {
			return nil
		}
		where, why := "", "is not JSON"
		if !binary {
			if where, why, err = l.compiled.validate(payload); err != nil {
				return err
			}
		}
		if why != "" {
			field := "payload" + clip(where, 100)
			return event.Problemf(codeSchemaMismatch, field, "%s does not match %s: %s", field, what, clip(why, 200)).At(i)
		}
	}
}
