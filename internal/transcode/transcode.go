// Package transcode is the MessagePack of requests and answers: that of the same types as their
// JSON, with the same meaning.
package transcode

import (
	"reflect"
	"strings"
	"sync"

	"github.com/qlogd/qlogd/internal/msgpackcheck"
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = msgpackcheck.MaxDepth

// jsonExt is the MessagePack extension type whose data is JSON text.
const jsonExt = 74

// fields are those of a struct, in their order.
type fields struct {
	list   []field
	byName map[string]int // their indexes
}

type field struct {
	name     string
	omitZero bool
}

var known sync.Map // *fields by reflect.Type

// fieldsOf returns the fields of a struct whose fields all have json tags.
func fieldsOf(t reflect.Type) *fields {
	if v, ok := known.Load(t); ok {
		return v.(*fields)
	}
	f := &fields{byName: map[string]int{}}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		f.list = append(f.list, field{name, options == "omitzero"})
		f.byName[name] = i
	}
	known.Store(t, f)
	return f
}
