package console

var attentionPages = []route{{"GET attention", "attention", (*page).attention}}

// attention lists what may need an operator, the worst first.
func (p *page) attention() error {
	items, err := p.api.Attention(p.ctx, p.now())
	if err != nil {
		return err
	}
	return p.show("attention", "Attention", items)
}
