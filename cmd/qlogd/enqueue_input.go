package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

// input is one JSON value and where it came from.
type input struct {
	value jsontext.Value
	where string
	err   error
}

// values delivers the JSON values of arguments, a file or stdin. It ends with
// an input that has an error, or by closing.
func (a *app) values(ctx context.Context, argv []string, file string) (<-chan input, error) {
	out := make(chan input, 64)
	send := func(v input) bool {
		select {
		case out <- v:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if len(argv) > 0 {
		go func() {
			defer close(out)
			for i, s := range argv {
				v := input{value: jsontext.Value(s), where: fmt.Sprintf("payload %d", i+1)}
				if !v.value.IsValid() {
					v.err = usagef(`%s is not JSON: %.64q (a text is written '"text"')`, v.where, s)
				}
				if !send(v) || v.err != nil {
					return
				}
			}
		}()
		return out, nil
	}
	name, r := "stdin", a.stdin
	var closer io.Closer
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usagef("%w", err)
		}
		name, r, closer = file, f, f
	} else if terminal(a.stdin) {
		fmt.Fprintln(a.stderr, "qlogd: reading JSON from the terminal; end with ctrl-D")
	}
	go func() {
		defer close(out)
		if closer != nil {
			defer closer.Close()
		}
		br := bufio.NewReaderSize(r, 256<<10)
		var src io.Reader = br
		if magic, _ := br.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
			z, err := gzip.NewReader(br)
			if err != nil {
				send(input{err: fmt.Errorf("%s: %w", name, err)})
				return
			}
			src = z
		}
		lines := &lineCounter{r: src}
		dec := jsontext.NewDecoder(lines)
		for n := 1; ; n++ {
			v, err := dec.ReadValue()
			if errors.Is(err, io.EOF) {
				return
			}
			where := fmt.Sprintf("%s: value %d", name, n)
			if err != nil {
				var syntax *jsontext.SyntacticError
				if errors.As(err, &syntax) {
					err = usagef("%s (line %d): %w", where, lines.at(min(syntax.ByteOffset, dec.InputOffset()+1)), err)
				}
				send(input{err: err})
				return
			}
			if !send(input{value: v.Clone(), where: where}) {
				return
			}
		}
	}()
	return out, nil
}

// lineCounter remembers where lines end, so that an error names one.
type lineCounter struct {
	r     io.Reader
	pos   int64
	lines []int64 // offsets of line ends
}

func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			l.lines = append(l.lines, l.pos+int64(i))
		}
	}
	l.pos += int64(n)
	return n, err
}

func (l *lineCounter) at(offset int64) int {
	n := 1
	for _, end := range l.lines {
		if end >= offset {
			break
		}
		n++
	}
	return n
}

// message makes a message of a value, with the flags where it leaves
// something open.
func (e *enqueuer) message(v input) (wire.ImportMessage, error) {
	var m wire.ImportMessage
	whole := e.as == "message" || e.imported
	if e.as == "auto" && !whole {
		whole = isMessage(v.value)
	}
	if e.imported {
		if err := wire.Decode(v.value, &m); err != nil {
			return m, usagef("%s: %w", v.where, err)
		}
		if m.SourceID == "" {
			return m, usagef("%s has no source_id", v.where)
		}
	} else if whole {
		if err := wire.Decode(v.value, &m.NewMessage); err != nil {
			return m, usagef("%s: %w", v.where, err)
		}
	} else {
		m.Payload = v.value
	}
	if m.Key == "" {
		m.Key = e.key
	}
	if m.Priority == nil && e.priority != 0 {
		m.Priority = &e.priority
	}
	if m.DelayMS == 0 && m.DeliverAt == 0 {
		m.DelayMS = e.delay.Milliseconds()
	}
	if m.TTLMS == 0 {
		m.TTLMS = e.ttl.Milliseconds()
	}
	if m.Kind == "" {
		m.Kind = e.kind
	}
	if m.CorrelationID == "" {
		m.CorrelationID = e.correlation
	}
	if m.IdempotencyKey == "" {
		m.IdempotencyKey = e.dedup
	}
	if len(e.headers) > 0 {
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		for k, h := range e.headers {
			if _, ok := m.Headers[k]; !ok {
				m.Headers[k] = h
			}
		}
	}
	return m, nil
}

// isMessage reports whether a value is a whole message rather than a payload.
func isMessage(v jsontext.Value) bool {
	if v.Kind() != '{' {
		return false
	}
	var m wire.NewMessage
	if err := json.Unmarshal(v, &m, json.RejectUnknownMembers(true)); err != nil {
		return errors.Is(err, wire.ErrBase64) // the server tells what is wrong with it
	}
	return m.Payload != nil || m.PayloadBytes != nil
}
