package console

import (
	"cmp"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/qlogd/qlogd/api/wire"
)

// flashFor is how long a flash waits for the next page.
const flashFor = time.Minute

// funcs are the functions of all templates. Methods of page come in addition.
var funcs = template.FuncMap{
	"dict":     dict,
	"list":     func(values ...field) []field { return values },
	"values":   func(values ...string) []string { return values },
	"rate":     func(n *float64) string { return humanize.CommafWithDigits(*n, 1) },
	"preview":  preview,
	"errorOf":  func(m wire.Message) string { return cmp.Or(m.Dead, &wire.Dead{}).Error },
	"int64":    func(n int) int64 { return int64(n) },
	"ago":      func(t wire.Time) string { return ago(t, time.Now()) },
	"exact":    func(t wire.Time) string { return t.String() },
	"seconds":  func(s int64) string { return span(time.Duration(s) * time.Second) },
	"millis":   func(ms int64) string { return span(time.Duration(ms) * time.Millisecond) },
	"count":    func(n int64) string { return humanize.Comma(n) },
	"bytes":    func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) },
	"short":    short,
	"plain":    plain,
	"moment":   func(t wire.Time) string { return t.Time().Format("2006-01-02 15:04:05.000") },
	"clip":     clip,
	"words":    words,
	"deref":    deref,
	"plural":   plural,
	"took":     took,
	"setting":  func(path string, value []byte) string { return settingText(path, string(value)) },
	"came":     func(by string) string { return came[by] },
	"sparks":   sparks,
	"glyph":    func(state string) string { return glyphs[state] },
	"field":    filterField,
	"progress": func(done, total int64) progress { return progress{done, max(total, done, 1)} },
}

// deref returns a text that may be missing.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// optional is the inverse of deref.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// words writes a name of the API as words.
func words(s string) string { return strings.ReplaceAll(s, "_", " ") }

// capital begins a text with a capital letter.
func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// came says how a message came from another one.
var came = map[string]string{
	"produce": "produced", "dead_letter": "died, now", "replay": "replayed as",
	"resurrect": "resurrected as",
}

// dict returns a map of pairs, for components that take several values.
func dict(pairs ...any) (map[string]any, error) {
	m := map[string]any{}
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: %d arguments are no pairs", len(pairs))
	}
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is no name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

// ago returns a time relative to now: "12 s ago", "in 3 min".
func ago(t wire.Time, now time.Time) string {
	if t == 0 {
		return "–"
	}
	d := now.Sub(t.Time())
	switch {
	case d < -time.Second:
		return "in " + span(-d)
	case d < time.Second:
		return "just now"
	}
	return span(d) + " ago"
}

// span returns a duration in its largest unit, and in two where the first is small.
func span(d time.Duration) string {
	ms := d.Milliseconds()
	two := func(big int64, b string, small int64, s string) string {
		if n := ms / big; n < 10 && ms%big/small > 0 {
			return fmt.Sprintf("%d %s %d %s", n, b, ms%big/small, s)
		}
		return fmt.Sprintf("%d %s", ms/big, b)
	}
	const second, minute, hour, day = 1000, 60_000, 3_600_000, 86_400_000
	switch {
	case ms < second:
		return strconv.FormatInt(ms, 10) + " ms"
	case ms < minute:
		return strconv.FormatInt(ms/second, 10) + " s"
	case ms < hour:
		return two(minute, "min", second, "s")
	case ms < 2*day:
		return two(hour, "h", minute, "min")
	case ms < 730*day:
		return two(day, "d", hour, "h")
	}
	return strconv.FormatInt(ms/day/365, 10) + " years"
}

// short returns the end of an id, which differs between neighbours.
func short(id string) string {
	if len(id) <= 10 {
		return id
	}
	return "…" + id[len(id)-8:]
}

// clip cuts a text of users to n characters, all of which are seen.
func clip(n int, s string) string {
	runes := []rune(plain(s))
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-1]) + "…"
}

// plural returns a number with its noun: plural 3 "message" is "3 messages".
func plural(n int64, noun string) string {
	return humanize.Comma(n) + " " + english.PluralWord(int(n), noun, "")
}

// glyphs distinguish states without colours.
var glyphs = map[string]string{
	"scheduled": "◷", "ready": "●", "leased": "▶", "acked": "✓", "dead_lettered": "✕", "dead": "✕",
	"discarded": "⊘", "replayed": "↻", "held": "‖", "paused": "‖", "enqueued": "+",
	"retried": "↺", "lease_expired": "◔", "released": "↩", "returned": "↩", "lease_extended": "»",
	"resurrected": "↻", "rescheduled": "◷", "erased": "∅", "content_carried": "→",
	"running": "▶", "completed": "✓", "failed": "✕", "cancelled": "⊘",
	"1": "▲", "2": "◆", "3": "■",
}

// preview returns the beginning of a payload on one line, or why there is none.
func preview(m wire.Message) string {
	switch {
	case m.Erased:
		return "(erased)"
	case m.Damaged:
		return "(damaged)"
	case m.Payload != nil:
		return clip(160, oneLine(string(m.Payload)))
	case m.PayloadBytes != nil && utf8.Valid(m.PayloadBytes):
		return clip(160, oneLine(string(m.PayloadBytes)))
	case m.PayloadBytes != nil:
		return "(binary " + m.ContentType + ")"
	case m.Size > 0:
		return "(large)"
	}
	return ""
}

// oneLine returns a text of users on one line.
func oneLine(s string) string { return strings.Join(strings.Fields(plain(s)), " ") }

// progress is how much of a task is done.
type progress struct{ Done, Total int64 }

// Percent is from 0 to 100.
func (p progress) Percent() int64 { return p.Done * 100 / p.Total }

// filterField is a field of a filter bar; with options it is a choice.
func filterField(name, label, value string, options ...string) field {
	return field{Name: name, Label: label, Value: value, None: "any", Options: options}
}

// listed is a page of a list.
type listed[T any] struct {
	Items []T
	Pager pager
}

// pager is the end of a page of a list. First and Next are queries; "" is none.
type pager struct {
	First, Next string
	Note        string // such as "10,000 messages read so far"
	On          bool   // nothing was found yet: the browser goes on
}

// pager returns the links of a list whose parameter "after" is a cursor of the API.
func (p *page) pager(next string) pager {
	out := pager{}
	if p.Param("after") != "" {
		out.First = p.Query("after", "")
	}
	if next != "" {
		out.Next = p.Query("after", next)
	}
	return out
}

// spark is a small chart: the points of a line in a box of sparkWidth by sparkHeight.
type spark struct {
	Line, Area string
	Label      string // for those who do not see it
	Empty      bool
}

const sparkWidth, sparkHeight = 96, 22

// sparks returns a chart of numbers, the oldest first.
func sparks(label string, values []float64) spark {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	s := spark{Label: label, Empty: most == 0}
	if len(values) < 2 || most == 0 {
		return s
	}
	var b strings.Builder
	for i, v := range values {
		x := float64(i) * sparkWidth / float64(len(values)-1)
		fmt.Fprintf(&b, "%.1f,%.1f ", x, sparkHeight-1-v/most*(sparkHeight-3))
	}
	s.Line = strings.TrimSpace(b.String())
	s.Area = fmt.Sprintf("0,%d %s %d,%d", sparkHeight, s.Line, sparkWidth, sparkHeight)
	return s
}
