package console

import "github.com/qlogd/qlogd/api/wire"

var messagePages = []route{{"GET messages/{id}", "overview", (*page).message}}

// message shows one message and its life.
func (p *page) message() error {
	m, err := p.api.Message(p.ctx, p.r.PathValue("id"), p.then()...)
	if err != nil {
		return err
	}
	return p.show("message", "Message "+short(m.ID), messageData{m})
}

type messageData struct{ Message *wire.Message }
