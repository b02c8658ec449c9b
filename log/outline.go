package log

// Outline is a block as Reader.Outline returns it: its bytes are right, and a
// record is taken apart when it is asked for. It is valid until the reader's next
// call; what Header and Record return stays as it is.
type Outline struct {
	Index uint64
	Time  int64 // the entry's stamp, Unix milliseconds
	Chain [32]byte

	raw  []byte   // the whole block
	offs []uint32 // where its records begin in raw
}

// Len returns how many records there are.
func (o *Outline) Len() int { return len(o.offs) }

// Header returns the header of the record at i.
func (o *Outline) Header(i int) []byte {
	b, lay := o.record(i)
	return b[lay.headerEnd-int64(le.Uint32(b[8:])>>8) : lay.headerEnd : lay.headerEnd]
}

// Record returns the record at i without its content.
func (o *Outline) Record(i int) (r Record) {
	b, lay := o.record(i)
	parseRecord(b[:lay.headerEnd], lay, &r)
	return r
}

// record returns the bytes from the record at i on, and how far it goes.
func (o *Outline) record(i int) ([]byte, layout) {
	b := o.raw[o.offs[i]:]
	return b, parseLayout(b)
}
