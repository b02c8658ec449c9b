package console

import (
	"errors"
	"net/http"
	"strings"
)

// confirm is a form that says what will be done, and does it when it is sent.
type confirm struct {
	Title, Text    string
	Action, Back   string // where it goes, and where Cancel does
	Submit         string
	Danger         bool
	Type           string // what must be typed first; "" nothing
	Choice         *field // one of some values
	Check, Checked string // the name and text of a box
	As             *as
	Error          string
}

// errTyped says that what must be typed to confirm was not.
var errTyped = errors.New("type it as it is shown: nothing was changed")

// confirmed shows a confirm form and, once it is sent, does it: do answers with done.
func (p *page) confirmed(f *confirm, do func() error) error {
	if p.r.Method == http.MethodGet {
		return p.ask(f, nil)
	}
	if f.Type != "" && strings.TrimSpace(p.r.PostForm.Get("typed")) != f.Type {
		return p.ask(f, errTyped)
	}
	err := do()
	if errors.Is(err, errAnswered) {
		return err
	}
	return p.ask(f, err)
}

// ask shows a confirm form, or shows it again after a mistake in it.
func (p *page) ask(f *confirm, err error) error {
	show := func(status int) error { return p.render(status, "confirm", f.Title, f) }
	if err == nil {
		return show(http.StatusOK)
	}
	if f.Error = errText(err); errors.Is(err, errTyped) {
		return show(http.StatusUnprocessableEntity)
	}
	return p.again(err, show)
}
