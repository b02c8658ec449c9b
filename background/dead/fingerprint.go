package dead

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/qlogd/qlogd/event"
)

// maxPattern is how much of an error text counts, in bytes: what distinguishes two
// failures is at the beginning, and a stack trace has no end.
const maxPattern = 2048

// Fingerprint returns what failures of the same kind have in common: a short
// hash of the reason and the error's Pattern.
func Fingerprint(reason event.Reason, pattern string) string {
	h := sha256.Sum256([]byte(reason.String() + "\x00" + pattern))
	return hex.EncodeToString(h[:6])
}

// Pattern returns an error text without what differs from one failure to the
// next: times, ids, addresses, numbers and what is quoted become placeholders,
// upper case becomes lower, and any white space one blank.
func Pattern(text string) string {
	s := strings.ToValidUTF8(event.Clip(text, maxPattern), "?")
	for _, r := range rules {
		if r.needs == "" || strings.ContainsAny(s, r.needs) {
			s = r.is.ReplaceAllString(s, r.becomes)
		}
	}
	s = hexWord.ReplaceAllStringFunc(s, func(word string) string {
		if strings.ContainsAny(word, "0123456789") && strings.ContainsAny(word, "abcdefABCDEF") {
			return "<hex>"
		}
		return word // a number, or a word such as facade
	})
	s = sign.ReplaceAllString(s, "$1$2")
	s = number.ReplaceAllString(s, "<n>")
	s = strings.ToLower(strings.Join(strings.Fields(s), " "))
	// Placeholders are longer than some of what they replace.
	return strings.TrimSpace(event.Clip(s, maxPattern))
}

// rules are applied in this order: what is more particular comes first, and no
// placeholder has a digit or a letter that a later rule would match.
var rules = []struct {
	needs   string // one of these characters; "": a text may match without any of them
	is      *regexp.Regexp
	becomes string
}{
	// What is quoted on one line. An apostrophe within a word opens and closes nothing.
	{"\"`'", regexp.MustCompile("(?s)\"(\\\\.|[^\"\\\\\n])*\"|`[^`\n]*`|" +
		`\B'(\\.|[^'\\\n]|'[\w\x{80}-\x{10ffff}])*'\B`), "<str>"},
	// 2026-01-31T12:00:00.5Z, 2026-01-31 12:00:00 +0100, 2026/01/31, 12:00:00
	{"-/", regexp.MustCompile(`\b\d{4}[-/]\d{2}[-/]\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?` +
		`( ?(Z|UTC|GMT|[+-]\d{2}:?\d{2})\b)?)?`), "<time>"},
	{":", regexp.MustCompile(`\b([01]\d|2[0-3]):[0-5]\d:[0-5]\d([.,]\d+)?\b`), "<time>"},
	// UUIDs and ULIDs
	{"-", regexp.MustCompile(`(?i)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "<id>"},
	{"", regexp.MustCompile(`\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b`), "<id>"},
	// ann@example.org
	{"@", regexp.MustCompile(`[\w.+-]+@[\w-]+(\.[\w-]+)+`), "<addr>"},
	// 10.0.0.1:443, [::1]:80, fe80::1, db-7.internal:5432
	{".", regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b`), "<addr>"},
	{"[", regexp.MustCompile(`(?i)\[[0-9a-f:]*:[0-9a-f:.]*(%\w+)?\](:\d+)?`), "<addr>"},
	{":", regexp.MustCompile(`(?i)\b[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}\b|` +
		`\b[0-9a-f]{1,4}(:[0-9a-f]{1,4})*::([0-9a-f]{1,4}(:[0-9a-f]{1,4})*)?`), "<addr>"},
	{":", regexp.MustCompile(`(?i)\b(localhost|[a-z0-9]([a-z0-9-]*[a-z0-9])?` +
		`(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+):\d{2,5}\b`), "<addr>"},
	// 0xc000123
	{"xX", regexp.MustCompile(`(?i)\b0x[0-9a-f]+\b`), "<hex>"},
}

var (
	hexWord = regexp.MustCompile(`(?i)\b[0-9a-f]{8,}\b`) // deadbeef01
	// -5, 3.14, 1,000,000, 1e-9, and the 12 of worker-12 and 12ms
	sign   = regexp.MustCompile(`(^|[\s=(\[:,])[-+](\d)`)
	number = regexp.MustCompile(`\d+([.,]\d+)*([eE][-+]?\d+\b)?`)
)
