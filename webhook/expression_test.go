package webhook

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cel.dev/cel-go/cel"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func testEnv(t testing.TB) *Env {
	t.Helper()
	return NewEnv(map[string]*cel.Type{"payload": cel.DynType, "headers": Strings,
		"name": cel.StringType, "at": cel.TimestampType, "n": cel.IntType})
}

func vars(t testing.TB, payload string) map[string]any {
	t.Helper()
	v, err := ParseJSON([]byte(payload))
	must(t, err)
	return varsOf(v)
}

func varsOf(payload any) map[string]any {
	return map[string]any{
		"payload": payload, "headers": map[string]string{"x-event": "issues"}, "name": "github",
		"at": time.Date(2026, 1, 31, 12, 0, 0, 5e8, time.UTC), "n": int64(7),
	}
}

const issue = `{"action":"opened","issue":{"number":1347,"title":"It \"breaks\" <here>","labels":["bug","ui"],"body":null},
	"id":9223372036854775807,"huge":18446744073709551615,"f":1.5,"one":1.0,"deep":{"b":[1,{"z":1,"a":2}],"a":true},"empty":{}}`

// TestJSON: what an expression gives is the JSON it should be.
func TestJSON(t *testing.T) {
	e := testEnv(t)
	b, err := os.ReadFile("testdata/expressions.txt")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		text, want, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			continue
		}
		o, err := e.CompileObject("o", map[string]string{"v": text})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := o.Eval(vars(t, issue), 1000)
		if want != "" {
			want = `"v":` + want
		}
		assert.True(t, err == nil && string(got) == "{"+want+"}", "%s: %s, %v", text, got, err)
	}
}

// TestRefusedWhenCompiled: with the place, in words.
func TestRefusedWhenCompiled(t *testing.T) {
	e := testEnv(t)
	for _, c := range []struct {
		text         string
		gives        *cel.Type
		line, column int
		want         string
	}{
		{`paylod.action == 'opened'`, cel.BoolType, 1, 1, "undeclared reference to 'paylod'"},
		{"payload.a == 1 &&\n  nam == 'x'", cel.BoolType, 2, 3, "undeclared reference to 'nam'"},
		{`payload.action ==`, cel.BoolType, 1, 18, "Syntax error"},
		{`name + n`, cel.StringType, 1, 6, "no matching overload"},
		{`n`, cel.StringType, 0, 0, "must give a string (string(…) makes one), this gives int"},
		{`name`, cel.BoolType, 0, 0, "must give true or false, this gives string"},
		{`  `, cel.DynType, 0, 0, "is empty"},
		{strings.Repeat(`name + `, 2000) + `name`, cel.DynType, 0, 0, "at most 8192 are taken"},
		{`name.matches('(')`, cel.BoolType, 0, 0, "missing closing )"},
		{strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300), cel.DynType, 0, 0, "recursion"},
	} {
		_, err := e.Compile(c.text, c.gives)
		at := ""
		if c.line > 0 {
			at = fmt.Sprintf("line %d, column %d: ", c.line, c.column)
		}
		if err == nil || !strings.HasPrefix(err.Error(), at) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %v", c.text, err)
		}
	}
}

// TestFailsWhenEvaluated: what the JSON does not have, and what would take too
// much of the machine.
func TestFailsWhenEvaluated(t *testing.T) {
	e := testEnv(t)
	const long = "long"
	parsed := map[string]any{long: map[string]any{
		"s": strings.Repeat("x", 1<<20), "l": []any{"", "", "", "", "", ""},
	}}
	for _, c := range []struct {
		text, payload, want string
		gives               *cel.Type
	}{
		{`payload.action == 'opened'`, `{}`, "no such key: action", cel.BoolType},
		{`payload.action == 'opened'`, `[]`, "", cel.BoolType},
		{`payload.a`, `{"a":1}`, "must give true or false, and gave a number", cel.BoolType},
		{`payload.a`, `{"a":1}`, "(string(…) makes one), and gave a number", cel.StringType},
		{`payload.a`, `{"a":null}`, "gave null", cel.StringType},
		{`payload.a`, `{"a":[]}`, "gave a list", cel.StringType},
		{`payload.a / 0 == 1`, `{"a":1}`, "division by zero", cel.BoolType},
		{`payload.a.all(x, payload.a.all(y, payload.a.all(z, x + y + z > 0)))`,
			`{"a":[` + strings.Repeat("1,", 200) + `1]}`, "takes more than 1000000 steps", cel.BoolType},
		{`payload.s.replace("", payload.s)`, long, "longer than 4194304 bytes", cel.DynType},
		{`payload.s.replace("x", payload.s, 5)`, long, "longer than 4194304 bytes", cel.DynType},
		{`payload.l.join(payload.s)`, long, "longer than 4194304 bytes", cel.DynType},
		{`payload.s`, long, "too large", cel.DynType},
		{`[payload.s, payload.s]`, long, "too large", cel.DynType},
		{`1e300 * 1e10`, `{}`, "JSON does not have", cel.DynType},
		{`{1: "x"}`, `{}`, "a key that is not a string", cel.DynType},
		{`type(payload)`, `{}`, "JSON does not have", cel.DynType},
		{`payload[payload.a]`, `{"a":"` + strings.Repeat("secret", 100) + `"}`, "no such key", cel.DynType},
	} {
		p, err := e.Compile(c.text, c.gives)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		payload, ok := parsed[c.payload]
		if !ok {
			payload, err = ParseJSON([]byte(c.payload))
			must(t, err)
		}
		if c.gives == cel.DynType {
			_, err = (&Object{"o", map[string]*Program{"v": p}}).Eval(varsOf(payload), 1<<20)
		} else {
			_, err = p.Value(varsOf(payload))
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 250 {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

func TestObject(t *testing.T) {
	e := testEnv(t)
	o, err := e.CompileObject("o", map[string]string{
		"title": `"[GitHub] " + payload.issue.title`, "body": `payload.issue.body`,
		"a\"b": `payload.?nobody`, "z": `optional.none()`, "n": `n`,
	})
	must(t, err)
	got, err := o.Eval(vars(t, issue), 100)
	if want := `{"body":null,"n":7,"title":"[GitHub] It \"breaks\" <here>"}`; err != nil ||
		string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := o.Eval(vars(t, issue), 50); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	var failed *FieldError
	if _, err := o.Eval(vars(t, `{"issue":{"body":1}}`), 100); !errors.As(err, &failed) ||
		failed.Field != "o.title" || !strings.Contains(err.Error(), "no such key: title") {
		t.Error(err)
	}
	var bad *FieldError
	if _, err := e.CompileObject("o", map[string]string{"a": "1", "b": "1 +"}); !errors.As(err, &bad) ||
		bad.Field != "o.b" {
		t.Error(err)
	}
	o, err = e.CompileObject("o", nil)
	must(t, err)
	if got, err := o.Eval(vars(t, issue), 100); string(got) != "{}" || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func TestValue(t *testing.T) {
	for text, want := range map[string]any{
		`-1`: int64(-1), `1e2`: float64(100),
		`-9223372036854775809`: float64(-9223372036854775809), `1e999`: 1.7976931348623157e308,
		`-1e999`: -1.7976931348623157e308, `"é"`: "é", ` true `: true, `1e-999`: float64(0),
	} {
		if got, err := ParseJSON([]byte(text)); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{``, `{`, `{"a":1,"a":2}`, "\"\xff\"", `1 2`, `{"a"}`, `[1,]`,
		`nul`, `{"a":1`, `[1`,
		strings.Repeat("[", 65) + strings.Repeat("]", 65), strings.Repeat(`{"a":`,
			65) + "1" + strings.Repeat("}", 65)} {
		got, err := ParseJSON([]byte(text))
		assert.True(t, err != nil, "%.40s: %v", text, got)
	}
	fits := []byte(strings.Repeat("[", 64) + strings.Repeat("]", 64))
	if _, err := ParseJSON(fits); err != nil {
		t.Error(err)
	}
}
