package fetch

import (
	"bytes"
	"maps"
	"slices"
	"testing"
)

// A power cut between the end of a transfer and its installation takes a sector
// out of the log's end, which was not synced, with whole blocks behind it. That is
// for the log's opening to judge: nothing is put in place, nothing is changed, and
// the log's end cut, what was fetched is of use.
func TestInstallLeavesADamagedLogAlone(t *testing.T) {
	n := newNode(t, 3)
	n.grow(12).checkpoint()
	disk := n.grow(30).copy()
	meta := n.grow(40).checkpoint()
	net := newNet()
	n.serve(net, "a")
	must(t, fetch(t, net, disk, meta, "a"))

	segments := files(t, disk, "/log", ".seg")
	newest := "/log/" + slices.Max(slices.Collect(maps.Keys(segments)))
	whole := disk.Get(newest)
	const sector = 512
	at := (len(whole)/2 + sector - 1) / sector * sector
	lost := bytes.Clone(whole)
	clear(lost[at : at+sector])
	if at+sector >= len(whole) || bytes.Equal(lost, whole) {
		t.Fatalf("nothing is damaged at %d of %d", at, len(whole))
	}
	disk.Put(newest, lost)
	if install(t, disk) {
		t.Error("put in place behind a damaged log")
	}
	if !bytes.Equal(disk.Get(newest), lost) {
		t.Error("the log was changed")
	}

	// As its opening leaves it: without what the power cut took.
	disk.Put(newest, whole)
	before := net.sent
	must(t, fetch(t, net, disk, meta, "a"))
	if sent := net.sent - before; sent >= before {
		t.Errorf("%d bytes were sent, and %d before", sent, before)
	}
	if !install(t, disk) {
		t.Error("not put in place")
	}
	if err := sameAsSource(t, disk, n, meta); err != nil {
		t.Error(err)
	}
}
