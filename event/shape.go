package event

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// letters has the types whose values pass through the codec once or more per message on every node:
// their fields in the order of the encoding, with names of one letter. Every other struct has all
// of its fields, in their order and under their names.
var letters = map[reflect.Type]string{
	// without ID, Subject, Prev, Alias and Content, which a record has beside its header
	reflect.TypeFor[Event](): "a:Type b:Queue c:Actor d:Key e:Kind f:Priority g:Due h:Expires " +
		"i:Size j:Until k:SourceID l:Lease m:LeaseExpires n:Attempt o:Worker p:Place q:Reason " +
		"r:ToQueue s:HoldsKey t:TakesKey u:DiedIn v:Order w:Edited x:First y:Policy z:Number " +
		"A:Count B:Task C:TaskKind D:Failed E:Node F:Refs G:Webhook H:Definition I:Body J:Before " +
		"K:Rules L:CorrelationID M:Cause N:CauseTruncated O:DedupKey",
	reflect.TypeFor[Content](): "a:Payload b:Binary c:ContentType d:Headers e:CorrelationID " +
		"f:Error g:Result h:Answer i:Spec j:Original k:Why",
	reflect.TypeFor[Header](): "n:Name v:Value",
	reflect.TypeFor[NewMessage](): "a:Key b:Kind c:Priority d:DelayMS e:DeliverAt f:TTLMS " +
		"g:DedupKey h:PayloadHash i:Size j:Content k:Seen l:SeenUntil m:SourceID n:SeenAs " +
		"o:CorrelationID p:Cause",
	reflect.TypeFor[SettleItem](): "a:Op b:Lease c:DelayMS d:LeaseMS e:Content f:At",
}

// kind says how a value is encoded.
type kind uint8

const (
	kindText kind = iota
	kindBytes
	kindHash // an id, or a hash
	kindBool
	kindUint
	kindInt
	kindRef
	kindBlob
	kindList
	kindPointer
	kindStruct
)

// shape is how a type is encoded.
type shape struct {
	kind
	bits   int     // of a number without a sign
	elem   *shape  // of a list's elements, or of what a pointer points to
	fields []field // of a struct
}

// field is a field of a struct.
type field struct {
	shape
	name string
	head []byte // the name, encoded
	at   int    // its position in the struct
	in   int    // the position of the embedded struct that it is in, -1 for none
}

// of returns the field's value in a struct.
func (f *field) of(v reflect.Value) reflect.Value {
	if f.in >= 0 {
		v = v.Field(f.in)
	}
	return v.Field(f.at)
}

// shapeOf returns the shape of a type of this package.
func shapeOf(t reflect.Type) shape {
	switch k := t.Kind(); {
	case t == reflect.TypeFor[Ref]():
		return shape{kind: kindRef}
	case t == reflect.TypeFor[Blob]():
		return shape{kind: kindBlob}
	case k == reflect.String:
		return shape{kind: kindText}
	case k == reflect.Bool:
		return shape{kind: kindBool}
	case k >= reflect.Int && k <= reflect.Int64:
		return shape{kind: kindInt}
	case k >= reflect.Uint && k <= reflect.Uint64:
		return shape{kind: kindUint, bits: t.Bits()}
	case k == reflect.Array && t.Elem().Kind() == reflect.Uint8:
		return shape{kind: kindHash}
	case k == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return shape{kind: kindBytes}
	case k == reflect.Slice:
		return shape{kind: kindList, elem: new(shapeOf(t.Elem()))}
	case k == reflect.Pointer:
		return shape{kind: kindPointer, elem: new(shapeOf(t.Elem()))}
	case k == reflect.Struct:
		return shape{kind: kindStruct, fields: fieldsOf(t)}
	}
	panic(fmt.Sprintf("event: no encoding of %s", t))
}

func fieldsOf(t reflect.Type) (fields []field) {
	for pair := range strings.FieldsSeq(letters[t]) {
		name, of, _ := strings.Cut(pair, ":")
		f, ok := t.FieldByName(of)
		if !ok {
			panic(fmt.Sprintf("event: %s has no field %s", t, of))
		}
		fields = append(fields, fieldOf(name, f))
	}
	if fields != nil {
		return fields
	}
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Tag.Get("msgpack") == "-":
		case f.Anonymous: // its fields are beside the others
			for _, inner := range fieldsOf(f.Type) {
				inner.in = i
				fields = append(fields, inner)
			}
		default:
			fields = append(fields, fieldOf(f.Name, f))
		}
	}
	return fields
}

// fieldOf returns a field with this name in the encoding, of at most 31 bytes.
func fieldOf(name string, f reflect.StructField) field {
	head := append([]byte{msgpcode.FixedStrLow | byte(len(name))}, name...)
	return field{shape: shapeOf(f.Type), name: name, head: head, at: f.Index[0], in: -1}
}

// zero reports whether a value is not encoded.
func (s *shape) zero(v reflect.Value) bool {
	switch s.kind {
	case kindText, kindBytes, kindList:
		return v.Len() == 0
	case kindUint:
		return v.Uint() == 0
	case kindInt:
		return v.Int() == 0
	case kindBlob:
		return v.Addr().Interface().(*Blob).IsZero()
	case kindStruct:
		for i := range s.fields {
			if f := &s.fields[i]; !f.zero(f.of(v)) {
				return false
			}
		}
		return true
	}
	return v.IsZero()
}
