package console

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

// How much of a content a page shows. The rest is a download.
const (
	maxShown    = 64 << 10 // bytes of JSON and text
	maxHexShown = 16 << 10 // bytes: a row of the dump is five times as long
)

// payload is a content as a page shows it.
type payload struct {
	Size    int64
	As      string   // json, text, hex
	Forms   []string // that it can be shown as
	Type    string   // media type
	Words   []word   // as json
	Text    string   // as text or hex
	Cut     bool     // there is more
	Missing bool     // it is not known any more
}

// word is a part of a text with one colour.
type word struct{ Class, Text string }

// bytesOf returns a message's payload and its media type.
func bytesOf(m *wire.Message) (b []byte, media string) {
	if m.PayloadBytes != nil {
		return m.PayloadBytes, m.ContentType
	}
	return m.Payload, "application/json"
}

// payloadOf returns a payload in a form, "" for the one that fits it best.
func payloadOf(b []byte, media, as string) *payload {
	p := &payload{Size: int64(len(b)), Type: media, Forms: []string{"text", "hex"}, As: "hex"}
	if utf8.Valid(b) {
		p.As = "text"
	}
	if kind, _, _ := mime.ParseMediaType(media); strings.HasSuffix(kind, "json") {
		if words, cut, err := pretty(b); err == nil {
			p.Forms, p.As = []string{"json", "text", "hex"}, "json"
			p.Words, p.Cut = words, cut
		}
	}
	if as == "text" || as == "hex" {
		p.As = as
	}
	switch p.As {
	case "text":
		p.Cut = len(b) > maxShown
		p.Text = plain(string(b[:min(len(b), maxShown)]))
	case "hex":
		p.Cut = len(b) > maxHexShown
		p.Text = hex.Dump(b[:min(len(b), maxHexShown)])
	}
	return p
}

// pretty returns JSON indented, at most maxShown bytes of it, and whether there is more. It stops
// there: a deeply nested value would be much longer indented.
func pretty(b []byte) (out []word, cut bool, err error) {
	lax := json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	dec := jsontext.NewDecoder(bytes.NewReader(b), lax)
	var text bytes.Buffer
	enc := jsontext.NewEncoder(&text, lax, jsontext.PreserveRawStrings(true),
		jsontext.WithIndent("  "))
	for text.Len() < maxShown {
		tok, err := dec.ReadToken()
		if err == nil {
			err = enc.WriteToken(tok)
		}
		if cut = !errors.Is(err, io.EOF); !cut {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	cut = cut || text.Len() > maxShown
	shown := strings.TrimSpace(string(text.Bytes()[:min(text.Len(), maxShown)]))
	at := 0
	for _, m := range jsonWord.FindAllStringIndex(shown, -1) {
		class := "lit"
		switch first := shown[m[0]]; {
		case first == '"' && strings.HasPrefix(shown[m[1]:], ":"):
			class = "key"
		case first == '"':
			class = "str"
		case first < 'A': // a digit, or a sign
			class = "num"
		}
		out = append(out, word{"", plain(shown[at:m[0]])}, word{class, plain(shown[m[0]:m[1]])})
		at = m[1]
	}
	return append(out, word{"", plain(shown[at:])}), cut, nil
}

// jsonWord matches a string, the last of which may be cut, a number or a literal.
var jsonWord = regexp.MustCompile(`"(\\.|[^"\\])*"?|[^\s"{}\[\]:,]+`)

// plain returns a text of users in which characters that would hide or reorder others are seen:
// control characters and those that change the direction of writing.
func plain(s string) string {
	if !strings.ContainsFunc(s, hidden) && utf8.ValidString(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x20 && hidden(r):
			return 0x2400 + r
		case r == 0x7f:
			return 0x2421
		case hidden(r):
			return 0xfffd
		}
		return r
	}, s)
}

func hidden(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) ||
		r == 0x2028 || r == 0x2029 || r == 0xfeff)
}

// download answers with the payload of a message as a file, or with the body that a webhook mapped.
func (p *page) download() error {
	m, err := p.message(p.r.PathValue("id"))
	if err != nil {
		return err
	}
	b, media := bytesOf(m)
	name := m.ID
	if p.Param("of") == "original" {
		b, media, name = m.Original, "application/json", name+"-original"
	}
	if len(b) == 0 && (m.Erased || m.Damaged || m.HistoryTruncated) || m.Erased || m.Damaged {
		return &failure{http.StatusGone, "There is no payload any more",
			"It was erased, lost to damage, or deleted with its history."}
	}
	if kind, _, _ := mime.ParseMediaType(media); strings.HasSuffix(kind, "json") {
		name += ".json"
	} else {
		name += ".bin"
	}
	h := p.w.Header()
	h.Set("Content-Type", "application/octet-stream") // never as a page, whatever it is
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	_, _ = p.w.Write(b)
	return errAnswered
}
