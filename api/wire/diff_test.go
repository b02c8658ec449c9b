package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestJSONPatch(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{`1`, `1`, ``},
		{`1`, `1.0`, `replace  1.0`},
		{`"é"`, `"\u00e9"`, ``},
		{`{"a":1,"b":{"c":[1,2,3]},"~/":null}`, `{"b":{"c":[1,4],"d":true},"~/":0}`,
			`remove /a ;replace /b/c/1 4;remove /b/c/2 ;add /b/d true;replace /~0~1 0`},
		{`[]`, `[1,{"a":2}]`, `add /0 1;add /1 {"a":2}`},
		{`{"a":[1]}`, `{"a":{"0":1}}`, `replace /a {"0":1}`},
		{`null`, `false`, `replace  false`},
		{`{"a" : [ 1 ]}`, `{"a":[1]}`, ``},
	} {
		got := Patch(jsontext.Value(c.before), jsontext.Value(c.after))
		var words []string
		for _, ch := range got {
			words = append(words, fmt.Sprintf("%s %s %s", ch.Op, ch.Path, string(ch.Value)))
		}
		assert.Equal(t, strings.Join(words, ";"), c.want, "%s to %s", c.before, c.after)
	}
	var long strings.Builder
	for i := range maxChanges + 1 {
		fmt.Fprintf(&long, ",%d", i)
	}
	got := Patch(jsontext.Value(`[]`), jsontext.Value("["+long.String()[1:]+"]"))
	assert.True(t, len(got) == 1 && got[0].Op == "replace" && got[0].Path == "",
		"%d changes", len(got))
}
