package api

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Schemas and payloads come from clients: a schema may refer to itself in ways that never
// terminate, or that break the library. So compiling and validating have a budget of evaluated
// subschemas, panics are caught, and no external references are loaded.

// errBudget ends a validation that takes too many steps.
var errBudget = errors.New("takes too many steps to check")

// schema is a compiled message_schema or payload_schema.
type schema struct {
	what     string // names it in errors
	compiled *jsonschema.Schema
	enum     int // the most values of an enum, or names of a required

	mu   sync.Mutex // one validation at a time, because the budget is counted here
	left int        // steps
}

// compileSchema compiles a JSON Schema (2020-12). Formats are asserted only with assertFormat.
func compileSchema(what string, text []byte, assertFormat bool) (sc *schema, err error) {
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
	sc = &schema{what: what}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.RegisterVocabulary(&jsonschema.Vocabulary{URL: "qlogd:budget", Compile: sc.count})
	c.AssertVocabs()
	if assertFormat {
		c.AssertFormat()
	}
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	sc.left = 1 << 20 // compiling validates against the metaschema
	sc.compiled, err = c.Compile(schemaURL)
	return sc, err
}

// count adds a step to a subschema.
func (sc *schema) count(
	_ *jsonschema.CompilerContext, obj map[string]any,
) (jsonschema.SchemaExt, error) {
	for _, keyword := range []string{"enum", "required"} {
		if list, ok := obj[keyword].([]any); ok {
			sc.enum = max(sc.enum, len(list))
		}
	}
	return &step{sc, cost(obj)}, nil
}

const schemaURL = "qlogd:message_schema"

type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("external references are not supported")
}

// step is part of every subschema and counts its evaluations. The library evaluates it last, and
// not at all if a type or an enum does not match, so each step also pays for the subschemas below
// it.
type step struct {
	schema *schema
	cost   int
}

func (e *step) Validate(*jsonschema.ValidatorContext, any) {
	if e.schema.left -= e.cost * e.schema.weight(); e.schema.left < 0 {
		panic(errBudget)
	}
}

// weight is the cost of one evaluation without its subschemas.
func (sc *schema) weight() int { return 1 + sc.enum/8 }

// cost is the number of evaluations that one evaluation may cause for the same value.
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

// validate checks one JSON payload. It returns why it does not match ("" if it does), and where.
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
		where += "/" + wire.Pointer.Replace(tok)
	}
	why = ve.Error()
	if head, rest, ok := strings.Cut(why, "\n"); ok && strings.HasPrefix(head, "jsonschema") {
		why = strings.TrimLeft(rest, "\n- ")
	}
	return where, why, nil
}

// checkSchema returns an error unless text is a usable schema.
func checkSchema(field string, text []byte) error {
	if len(text) > event.MaxSchema {
		return bad(field, "%s must be at most %d bytes", field, event.MaxSchema)
	}
	if _, err := compileSchema(field, text, true); err != nil {
		why := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), schemaURL, "")), " ")
		return bad(field, "%s is not a JSON Schema (2020-12): %s", field, clip(why, 200))
	}
	return nil
}

// payload is a message's payload, to be checked against a schema.
type payload struct {
	bytes  []byte
	binary bool // not JSON
}

// check validates payloads in order; a mismatch has its index. A nil schema accepts all.
func (sc *schema) check(payloads ...payload) (err error) {
	if sc == nil {
		return nil
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for i, p := range payloads {
		where, why := "", "is not JSON"
		if !p.binary {
			if where, why, err = sc.validate(p.bytes); err != nil {
				return err
			}
		}
		if why != "" {
			field := "payload" + clip(where, 100)
			return event.Problemf(codeSchemaMismatch, field, "%s does not match %s: %s",
				field, sc.what, clip(why, 200)).At(i)
		}
	}
	return nil
}

// fitsQueue checks payloads against a queue's message_schema, if it has one.
func (s *Server) fitsQueue(v *event.QueueView, payloads ...payload) error {
	if len(v.Policy.MessageSchema) == 0 {
		return nil
	}
	sc, err := s.schemas.of(v.Name, v.Revision, func() (*schema, error) {
		return compileSchema("the queue's message_schema", v.Policy.MessageSchema,
			v.Policy.AssertFormat)
	})
	if err != nil {
		return fmt.Errorf("message_schema of queue %s: %w", v.Name, err)
	}
	return sc.check(payloads...)
}

// Fits checks a content against a queue's message_schema. A mismatch is an *event.Problem.
func (s *Server) Fits(v *event.QueueView, c *event.Content) error {
	err := s.fitsQueue(v, payload{c.Payload, c.Binary})
	if p, ok := err.(*event.Problem); ok {
		return p.At(-1)
	}
	return err
}

// cache keeps the compiled form of the newest definition of a queue or webhook, by name.
type cache[V any] struct{ *lru.Cache[string, cached[V]] }

type cached[V any] struct {
	revision uint64 // the entry that set the definition
	v        V
}

func newCache[V any]() cache[V] {
	c, _ := lru.New[string, cached[V]](10_000) // fails only for a size below one
	return cache[V]{c}
}

// of returns the cached value of this revision of a definition, or else what compile returns.
func (c cache[V]) of(name string, revision uint64, compile func() (V, error)) (V, error) {
	if m, ok := c.Get(name); ok && m.revision == revision {
		return m.v, nil
	}
	v, err := compile()
	if err == nil {
		c.Add(name, cached[V]{revision, v})
	}
	return v, err
}
