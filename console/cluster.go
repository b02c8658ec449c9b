package console

var clusterPages = []route{{"GET cluster", "cluster", (*page).cluster}}

// cluster shows the nodes.
func (p *page) cluster() error {
	c, err := p.api.Cluster(p.ctx, p.now())
	if err != nil {
		return err
	}
	return p.show("cluster", "Cluster", c)
}
