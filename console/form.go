package console

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/qlogd/qlogd/client"
)

// form is a page that says what will be done, asks for what is missing, and does it when it is
// sent. It is created by newForm.
type form struct {
	Title, Text, Warning string
	Facts                [][2]string
	Fields               []field
	Hidden               url.Values // sent along
	Type                 string     // what must be typed to confirm; "" nothing
	Submit               string     // the button; "" there is nothing to do
	Danger               bool
	Back                 string // where Cancel goes
	As                   *as
	Error                string
	Plan                 *plan // what it would do; nil: Text says it
}

// field is an input of a form, or of a filter bar.
type field struct {
	Name, Label, Hint, Value, Placeholder string

	Kind     string   // number, checkbox, note (text without an input); "" is text
	Options  []string // of a choice
	None     string   // the option that is none of them; "" there is none
	Rows     int      // of a text with several lines
	Wide     bool
	Required bool
	Suggest  []string
}

// reason is the field for why an operator does something.
var reason = field{
	Name: "reason", Label: "Reason", Hint: "kept in the event, beside your name", Wide: true,
}

// newForm returns a form whose fields have what was sent, what the page's query says, or what they
// come with.
func (p *page) newForm(title, submit, back string, fields ...field) *form {
	f := &form{Title: title, Submit: submit, Back: back, Fields: fields, Hidden: url.Values{}}
	v := p.values()
	for i := range fields {
		if v.Has(fields[i].Name) {
			fields[i].Value = v.Get(fields[i].Name)
		}
	}
	f.Hidden.Set("once", rand.Text())
	for _, name := range []string{"once", "seen", "until"} {
		if p.r.PostForm.Has(name) {
			f.Hidden.Set(name, p.r.PostForm.Get(name))
		}
	}
	return f
}

// values are the parameters of the page, or of the form that was sent.
func (p *page) values() url.Values {
	if p.r.Method == http.MethodPost {
		return p.r.PostForm
	}
	return p.r.URL.Query()
}

// field returns a field, an empty one where there is none of the name.
func (f *form) field(name string) *field {
	for i := range f.Fields {
		if f.Fields[i].Name == name {
			return &f.Fields[i]
		}
	}
	return &field{}
}

func (f *form) get(name string) string { return f.field(name).Value }

// number returns the whole number in a field, nil if it is empty.
func (f *form) number(name string) (*int64, error) {
	text := strings.TrimSpace(f.get(name))
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, mistake(f.field(name).Label + " must be a whole number.")
	}
	return &n, nil
}

// Self is the URL of this page, to which a form is sent.
func (p *page) Self() string { return p.root + strings.TrimPrefix(p.r.URL.EscapedPath(), "/ui/") }

// once makes the change of a form at most once, however often the same form is sent.
func (p *page) once() client.CallOption {
	if p.r.PostForm.Get("once") == "" {
		return client.WithIdempotencyKey("")
	}
	sum := sha256.Sum256([]byte(p.r.PostForm.Encode()))
	return client.WithIdempotencyKey("console-" + hex.EncodeToString(sum[:16]))
}

// send shows a form and, once it is sent, does it: do answers with done. With part=as it only shows
// how a script would do it.
func (p *page) send(f *form, do func() error) error {
	show := func(status int, text string) error {
		f.Error = text
		return p.render(status, "form", f.Title, f)
	}
	typed := strings.TrimSpace(p.r.PostForm.Get("typed"))
	switch {
	case p.r.Method == http.MethodGet || p.Param("part") != "":
		return show(http.StatusOK, "")
	case !strings.EqualFold(typed, f.Type):
		return show(http.StatusBadRequest, "Type "+f.Type+" to confirm. Nothing was changed.")
	}
	return p.wrong(do(), show)
}

// mistake is what is wrong in a form, before the API is asked.
type mistake string

func (m mistake) Error() string { return string(m) }

// wrong shows a form again after a mistake in it: one that is found here, a queue named in it that
// does not exist, or what the API refuses. It says so if nobody knows whether the change was made.
// Other errors are returned.
func (p *page) wrong(err error, show func(status int, text string) error) error {
	if m, ok := errors.AsType[mistake](err); ok {
		return show(http.StatusBadRequest, string(m))
	}
	e, answered := errors.AsType[*client.Error](err)
	if errors.Is(err, client.ErrOutcomeUnknown) {
		why := "The node did not answer in time."
		if answered {
			why = e.Problem.Detail + "."
		}
		return show(http.StatusServiceUnavailable, "It is not known whether this was done. Send the "+
			"form again as it is: it is done once, however often it is sent. "+why)
	}
	if !answered || e.Problem.Status < 400 || e.Problem.Status == http.StatusUnauthorized ||
		e.Problem.Status == http.StatusNotFound && e.Problem.Field != "to" && e.Problem.Field != "queue" {
		return err
	}
	return show(e.Problem.Status, e.Problem.Detail)
}
