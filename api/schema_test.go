package api

import (
	"fmt"
	"strings"
	"testing"
)

// TestSchemaBombs end within their budget.
func TestSchemaBombs(t *testing.T) {
	var wide strings.Builder
	wide.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 60 {
		fmt.Fprintf(&wide, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	wide.WriteString(`"d60":{"type":"integer"}}}`)
	deep := strings.Repeat(`{"a":`, 50) + `1` + strings.Repeat(`}`, 50)
	for name, c := range map[string][2]string{
		"doubling references": {wide.String(), `1`},
		"recursion":           {`{"properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}},"additionalProperties":false,"not":{"const":5}}`, deep},
		"failing recursion":   {`{"properties":{"a":{"oneOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}},"type":["object","integer"]}`, deep},
		"itself":              {`{"$ref":"#"}`, `1`},
		"dynamic itself":      {`{"$dynamicAnchor":"x","allOf":[{"$dynamicRef":"#x"}]}`, `1`},
		"big enum":            {`{"items":{"enum":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 1), ",") + `,` + numbers(20_000) + `]}}`, `[` + strings.TrimSuffix(strings.Repeat(`"y",`, 200_000), ",") + `]`},
	} {
		t.Run(name, func(t *testing.T) {
			sc, err := compileSchema("s", []byte(c[0]))
			if err != nil {
				t.Logf("refused: %v", err)
				return
			}
			_, why, err := sc.validate([]byte(c[1]))
			if len(why) > 200 {
				why = why[:200]
			}
			t.Logf("%s %v, %d steps left", why, err, sc.left)
			if why == "" && err == nil && sc.left < 0 {
				t.Error("out of budget and valid")
			}
		})
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return strings.TrimSuffix(b.String(), ",")
}
