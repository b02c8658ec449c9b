// Package transcode is the MessagePack of requests and answers: that of the same types as their
// JSON, with the same meaning.
package transcode

import (
	"bytes"
	"reflect"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// jsonExt is the MessagePack extension type whose data is JSON text.
const jsonExt = 74

// fields are those of a struct, in their order.
type fields struct {
	list   []field
	byName map[string]int // their indexes
}

type field struct {
	name     []byte // as MessagePack
	index    []int  // as FieldByIndex takes it
	omitZero bool
}

var known sync.Map // *fields by reflect.Type

// fieldsOf returns the fields of a struct, all with json tags, and those of its embedded structs.
func fieldsOf(t reflect.Type) *fields {
	if v, ok := known.Load(t); ok {
		return v.(*fields)
	}
	f := &fields{byName: map[string]int{}}
	for _, sf := range reflect.VisibleFields(t) {
		if sf.Anonymous {
			continue
		}
		name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
		encoded, _ := msgpack.Marshal(name)
		f.byName[name] = len(f.list)
		f.list = append(f.list, field{encoded, sf.Index, options == "omitzero"})
	}
	known.Store(t, f)
	return f
}

// TooDeep reports whether JSON is nested deeper than most. It only counts brackets:
// whether the text is JSON at all is for the decoder to find out.
func TooDeep(b []byte, most int) bool {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += stringLen(b[i+1:])
		case '{', '[':
			if depth++; depth > most {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringLen returns the length of the JSON string that b begins in, with its closing quote.
func stringLen(b []byte) int {
	for n := 0; ; {
		i := bytes.IndexByte(b[n:], '"')
		if i < 0 {
			return len(b)
		}
		n += i + 1
		escape := n - 1
		for escape > 0 && b[escape-1] == '\\' {
			escape--
		}
		if (n-1-escape)%2 == 0 {
			return n
		}
	}
}
