package projections

// kindTable interns the names of kinds.
type kindTable struct {
	slab   slab[kind]
	byName map[string]handle
}

type kind struct {
	name string
	refs uint32
}

func (t *kindTable) take(name string) handle {
	if name == "" {
		return 0
	}
	h, ok := t.byName[name]
	if !ok {
		var k *kind
		h, k = t.slab.alloc()
		k.name = name
		t.byName[name] = h
	}
	t.slab.mut(h).refs++
	return h
}

func (t *kindTable) give(h handle) {
	if h == 0 {
		return
	}
	k := t.slab.mut(h)
	if k.refs--; k.refs == 0 {
		delete(t.byName, k.name)
		t.slab.release(h)
	}
}

func (t *kindTable) name(h handle) string {
	if h == 0 {
		return ""
	}
	return t.slab.get(h).name
}
