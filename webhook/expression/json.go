package expression

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/internal/transcode"
)

// ErrTooLarge is for JSON that would become larger than allowed.
var ErrTooLarge = errors.New("what it gives is too large")

// ErrTooDeep is for JSON that is nested too deep.
var ErrTooDeep = fmt.Errorf("nested deeper than %d", transcode.MaxDepth)

// Value reads JSON for expressions: map[string]any, []any, string, bool, nil,
// int64, uint64 where it is whole and too large for that, else float64. A name
// twice in an object, bad UTF-8 and anything behind the value are errors.
func Value(text []byte) (any, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text)) // of a Buffer it reads in place
	v, err := read(dec, 1)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		if err == nil {
			err = errors.New("there is something after the end")
		}
		return nil, err
	}
	return v, nil
}

// Check is Value for who only wants to know whether there is an error.
func Check(text []byte) error {
	if jsontext.Value(text).IsValid() && !transcode.TooDeep(text, transcode.MaxDepth) {
		return nil
	}
	_, err := Value(text)
	return err
}

func read(dec *jsontext.Decoder, depth int) (any, error) {
	t, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return t.Bool(), nil
	case '"':
		return t.String(), nil
	case '0':
		text := t.String()
		if !strings.ContainsAny(text, ".eE") {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				return n, nil
			}
			if n, err := strconv.ParseUint(text, 10, 64); err == nil {
				return n, nil
			}
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil { // out of range
			f = math.Copysign(math.MaxFloat64, f)
		}
		return f, nil
	case '[':
		if depth > transcode.MaxDepth {
			return nil, ErrTooDeep
		}
		list := []any{}
		for dec.PeekKind() != ']' {
			v, err := read(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := dec.ReadToken()
		return list, err
	}
	if depth > transcode.MaxDepth {
		return nil, ErrTooDeep
	}
	object := map[string]any{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String() // before the next token takes its place
		if object[key], err = read(dec, depth+1); err != nil {
			return nil, err
		}
	}
	_, err = dec.ReadToken()
	return object, err
}

// writer writes what an expression gave as JSON.
type writer struct {
	out   []byte
	limit int
}

func (w *writer) value(v ref.Val, depth int) (err error) {
	if len(w.out) > w.limit {
		return ErrTooLarge
	}
	switch v := v.(type) {
	case types.Null:
		w.out = append(w.out, "null"...)
	case types.Bool:
		w.out = strconv.AppendBool(w.out, bool(v))
	case types.Int:
		w.out = strconv.AppendInt(w.out, int64(v), 10)
	case types.Uint:
		w.out = strconv.AppendUint(w.out, uint64(v), 10)
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return errors.New("it gives a number that JSON does not have (infinite, or none)")
		}
		w.out = strconv.AppendFloat(w.out, float64(v), floatFormat(float64(v)), -1, 64)
	case types.String:
		return w.text(string(v))
	case types.Bytes:
		return w.text(base64.StdEncoding.EncodeToString(v))
	case types.Timestamp:
		return w.text(v.UTC().Format(time.RFC3339Nano))
	case types.Duration:
		return w.text(strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + "s")
	case *types.Optional:
		if !v.HasValue() {
			w.out = append(w.out, "null"...)
			return nil
		}
		return w.value(v.GetValue(), depth)
	case traits.Mapper:
		return w.object(v, depth)
	case traits.Lister:
		return w.list(v, depth)
	default:
		return fmt.Errorf("it gives %s, which JSON does not have", kind(v))
	}
	return nil
}

// floatFormat is the one of JavaScript's number to string.
func floatFormat(f float64) byte {
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		return 'e'
	}
	return 'f'
}

func (w *writer) text(s string) error {
	out, err := jsontext.AppendQuote(w.out, s)
	if err != nil {
		return errors.New("it gives a string that is not UTF-8")
	}
	w.out = out
	return nil
}

func (w *writer) list(v traits.Lister, depth int) error {
	if depth > transcode.MaxDepth {
		return ErrTooDeep
	}
	w.out = append(w.out, '[')
	for i, it := 0, v.Iterator(); it.HasNext() == types.True; i++ {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.value(it.Next(), depth+1); err != nil {
			return err
		}
	}
	w.out = append(w.out, ']')
	return nil
}

func (w *writer) object(v traits.Mapper, depth int) error {
	if depth > transcode.MaxDepth {
		return ErrTooDeep
	}
	var keys []types.String
	for it := v.Iterator(); it.HasNext() == types.True; {
		key, ok := it.Next().(types.String)
		if !ok {
			return errors.New("it gives a map with a key that is not a string, which JSON does not have")
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	w.out = append(w.out, '{')
	for i, key := range keys {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.text(string(key)); err != nil {
			return err
		}
		w.out = append(w.out, ':')
		if err := w.value(v.Get(key), depth+1); err != nil {
			return err
		}
	}
	w.out = append(w.out, '}')
	return nil
}
