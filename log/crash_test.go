package log

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

// teller plays a scenario on a disk and notes what the log has promised.
type teller struct {
	disk     *memdisk.Disk
	log      *Log
	appended []*rawBlock
	durable  uint64 // head at the last Sync that returned
	deleted  uint64 // DeleteBefore was called with this
	erasing  map[event.Ref]bool
	erased   map[event.Ref]bool // by an Erase that returned
	headers  map[string][]byte  // right ones, by segment, of those that are damaged
}

var errGivesUp = errors.New("the scenario ends")

// do panics out of the scenario at the first error.
func (s *teller) do(err error) {
	if err != nil {
		panic(fmt.Errorf("%w: %w", errGivesUp, err))
	}
}

func (s *teller) options() Options {
	opts := options(s.disk)
	// All that Raft may have truncated is what was made durable.
	opts.HeldFrom, opts.Durable = s.durable+1, s.durable
	return opts
}

func (s *teller) open() {
	l, err := Open(s.options())
	s.do(err)
	s.log = l
}

func (s *teller) append(n int) {
	for range n {
		b := story(len(s.appended))
		s.appended = append(s.appended, b) // even a failing Append may leave it
		s.do(s.log.append(b))
	}
}

func (s *teller) sync() {
	head := s.log.Head()
	s.do(s.log.Sync())
	s.durable = head
}

func (s *teller) deleteBefore(index uint64) {
	s.deleted = index
	s.do(s.log.DeleteBefore(index))
}

func (s *teller) erase(refs ...event.Ref) {
	for _, ref := range refs {
		s.erasing[ref] = true
	}
	s.do(s.log.Erase(refs))
	for _, ref := range refs {
		s.erased[ref] = true
	}
}

func (s *teller) close() {
	head := s.log.Head()
	s.do(s.log.Close())
	s.durable = head
}

// scenario appends, rolls, syncs, writes side files, deletes, erases, reopens
// and goes on.
func scenario(s *teller) {
	s.open()
	s.append(3)
	s.sync()
	s.append(14)
	s.sync()
	s.append(9)
	s.erase(event.Ref{Index: 1, Number: 0}, event.Ref{Index: 15, Number: 0},
		event.Ref{Index: 18, Number: 0}, event.Ref{Index: s.log.Head(), Number: 0},
		event.Ref{Index: 1, Number: 0})
	s.append(6)
	s.deleteBefore(12)
	s.append(4)
	s.close()
	s.open()
	s.append(8)
	s.deleteBefore(25)
	s.append(3)
	s.sync()
	s.append(4)
}

// allButActive deletes everything before a segment that was never synced.
func allButActive(s *teller) {
	s.open()
	for range 3 {
		n := len(s.log.Segments())
		for len(s.log.Segments()) < n+2 {
			s.append(1)
		}
		s.deleteBefore(s.log.Head())
	}
}

// damagedHeaders works on a log in which the headers of its second and its newest segment are
// wrong, and replaces both.
func damagedHeaders(s *teller) {
	s.open()
	s.append(10)
	s.close()
	for _, i := range []int{1, len(s.log.segments) - 1} {
		seg := s.log.segments[i]
		name := path.Join(dir, seg.Name)
		b := s.disk.Get(name)
		s.headers[seg.Name] = slices.Clone(b[:headerSize])
		b[20+i] ^= 0x11
		s.disk.Put(name, b)
	}
	s.open()
	second := s.log.segments[1].First
	s.append(2)
	s.sync()
	s.erase(event.Ref{Index: second, Number: 0}, event.Ref{Index: s.log.Head(), Number: 0})
	s.append(2)
	s.deleteBefore(second)
	s.close()
	s.open()
	s.append(4)
	s.do(s.repair())
}

// repair replaces the sealed segments whose headers are damaged.
func (s *teller) repair() error {
	for _, seg := range s.log.Segments() {
		header := s.headers[seg.Name]
		if header == nil || s.log.Check(context.Background(), seg.First, nil) == nil {
			continue
		}
		b := s.disk.Get(path.Join(dir, seg.Name))
		err := vfs.WriteFile(s.disk, "/copy", slices.Concat(header, b[headerSize:]))
		if err == nil {
			err = s.log.Replace(seg, "/copy")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var scenarios = map[string]func(*teller){"everything": scenario, "all but active": allButActive,
	"damaged headers": damagedHeaders}

func play(disk *memdisk.Disk, scenario func(*teller)) (s *teller, err error) {
	s = &teller{disk: disk, erasing: map[event.Ref]bool{}, erased: map[event.Ref]bool{},
		headers: map[string][]byte{}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(error)
			if !ok || !errors.Is(e, errGivesUp) {
				panic(r)
			}
			err = e
		}
	}()
	scenario(s)
	return s, nil
}

// TestCrashAtEveryOperation lets the power fail in every write, sync, create,
// rename and remove of the scenario, and looks at what is left.
func TestCrashAtEveryOperation(t *testing.T) {
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole, err := play(memdisk.New(), scenario)
			must(t, err)
			must(t, whole.log.Close())
			ops := whole.disk.Ops()
			t.Logf("figures: %d crashes in %d operations of the event log", 5*ops, ops)
			for n := 1; n <= ops; n += step(1, 23) {
				for seed := range uint64(5) {
					crashAt(t, scenario, whole, n, seed)
				}
			}
		})
	}
}

func crashAt(t *testing.T, scenario func(*teller), whole *teller, n int, seed uint64) {
	t.Helper()
	disk := memdisk.New()
	disk.CrashAt(n)
	s, err := play(disk, scenario)
	require.False(t, err != nil && !errors.Is(err, memdisk.ErrCrashed), "operation %d: %v", n, err)
	if s.log != nil {
		s.log.Close()
	}
	s.disk = disk.Crash(testRand(seed*1e6 + uint64(n)))
	require.Equal(t, s.afterCrash(whole), "", "operation %d, seed %d", n, seed)
}

// afterCrash recovers and returns what is wrong.
func (s *teller) afterCrash(whole *teller) string {
	opts := s.options()
	head := uint64(0)
	if _, err := s.disk.List(dir); err == nil {
		r, err := OpenReadOnly(opts)
		if err != nil {
			return fmt.Sprintf("read-only: %v", err)
		}
		head = r.Head()
		r.Close()
	}
	l, err := Open(opts)
	if err != nil {
		return err.Error()
	}
	defer l.Close()
	if l.Head() != head {
		return fmt.Sprintf("head %v, a reader says %v", l.Head(), head)
	}
	if msg := s.holds(l); msg != "" {
		return msg
	}
	// Raft feeds what is missing again, and a later crash changes nothing.
	for i, b := range whole.appended {
		if b.Index > l.Head() {
			if err := l.append(story(i)); err != nil {
				return err.Error()
			}
		}
	}
	var refs []event.Ref
	for ref := range whole.erased {
		refs = append(refs, ref)
	}
	s.log = l
	for _, err := range []error{
		l.Erase(refs), l.DeleteBefore(whole.deleted), s.repair(), l.Close(),
	} {
		if err != nil {
			return err.Error()
		}
	}
	after := s.disk.CrashWith(memdisk.LoseAll, testRand(1))
	if _, err := Verify(context.Background(), options(after), nil); err != nil {
		return err.Error()
	}
	return sameFiles(whole.disk, after)
}

// holds checks a recovered log against what was promised.
func (s *teller) holds(l *Log) string {
	if l.Head() < s.durable {
		return fmt.Sprintf("head %d, but %d was durable", l.Head(), s.durable)
	}
	report, err := Verify(context.Background(), options(s.disk), nil)
	if c, ok := errors.AsType[*CorruptionError](err); ok && s.headers[c.Segment] != nil &&
		c.Offset == 0 {
		report.Last, report.Chain, err = l.Head(), tipOf(l).chain, nil
	}
	if err != nil {
		return err.Error()
	}
	if report.Tail != nil || (tip{report.Last, report.Chain}) != tipOf(l) {
		return fmt.Sprintf("after recovery: %+v", report)
	}
	got, err := tryReadAll(l, 0)
	if err != nil {
		return err.Error()
	}
	from := 0
	for from < len(s.appended) && s.appended[from].Index < l.First() {
		from++
	}
	if len(got) > 0 && from > 0 && s.appended[from-1].Index >= max(s.deleted, 1) {
		return fmt.Sprintf("block %d is gone, retention was asked for %d", s.appended[from-1].Index,
			s.deleted)
	}
	for i, b := range got {
		want := s.appended[from+i]
		if msg := diffBlock(b, want); msg != "" {
			return msg
		}
		for n, r := range b.Records {
			ref := event.Ref{Index: b.Index, Number: uint32(n)}
			if r.Erased && !s.erasing[ref] || !r.Erased && s.erased[ref] && r.Content != nil {
				return fmt.Sprintf("record %s: erased %v", ref, r.Erased)
			}
		}
	}
	if l.Head() == 0 && s.durable > 0 {
		return "the log is empty"
	}
	return ""
}

// sameFiles compares all segments and side files.
func sameFiles(a, b *memdisk.Disk) string {
	all := func(disk *memdisk.Disk) map[string]string {
		m := map[string]string{}
		names, _ := disk.List(dir)
		for _, name := range names {
			m[name] = string(disk.Get(path.Join(dir, name)))
		}
		return m
	}
	x, y := all(a), all(b)
	if !maps.Equal(x, y) {
		return fmt.Sprintf("files differ: %s and %s",
			strings.Join(slices.Sorted(maps.Keys(x)), " "),
			strings.Join(slices.Sorted(maps.Keys(y)), " "))
	}
	return ""
}

// TestErrorAtEveryOperation lets every operation fail once: the log says so,
// refuses everything after, and what it had promised is there when it is opened
// anew.
func TestErrorAtEveryOperation(t *testing.T) {
	whole, err := play(memdisk.New(), scenario)
	must(t, err)
	must(t, whole.log.Close())
	boom := errors.New("boom")
	for n := 1; n <= whole.disk.Ops(); n += step(1, 7) {
		disk := memdisk.New()
		disk.FailAt(n, boom)
		s, err := play(disk, scenario)
		if err == nil {
			continue // in the Close above
		}
		require.ErrorIs(t, err, boom, "operation %d:", n)
		require.False(t, s.log != nil && s.log.Close() != nil,
			"operation %d: closing a broken log", n)
		// Whatever the failed operation has left: the power goes too.
		s.disk = disk.Crash(testRand(uint64(n)))
		require.Equal(t, s.afterCrash(whole), "", "operation %d", n)
	}
}

func TestBrokenLogSaysSo(t *testing.T) {
	disk := memdisk.New()
	l := mustOpen(t, options(disk))
	first := story(0)
	appendAll(t, l, first)
	boom := errors.New("boom")
	disk.FailAt(disk.Ops()+1, boom)
	require.ErrorIs(t, l.Sync(), boom)
	for name, err := range map[string]error{
		"append": l.append(story(1)), "sync": l.Sync(), "delete": l.DeleteBefore(9),
		"erase": l.Erase([]event.Ref{{Index: 1, Number: 0}}),
		"wait":  l.Wait(context.Background(), 5),
	} {
		assert.ErrorIs(t, err, ErrBroken, name)
	}
	sameBlocks(t, readAll(t, l, 0), []*rawBlock{first})
}

// TestEachSectorLost loses one sector of a tail, wherever its records begin in that.
func TestEachSectorLost(t *testing.T) {
	for pad := range diskSector {
		whole := memdisk.New()
		l := mustOpen(t, Options{FS: whole, Dir: dir, SegmentSize: 8192, inline: true})
		appendAll(t, l, block(1, rec("a", strings.Repeat("x", pad))),
			block(2, rec("b", strings.Repeat("y", 900)), rec("c", strings.Repeat("z", 300))),
			block(3, rec("d", "-")))
		name := newestSegment(t, whole)
		b := whole.Get(name)
		must(t, l.Close())
		for at := 0; at < len(b); at += diskSector {
			lost := slices.Clone(b)
			clear(lost[at:min(at+diskSector, len(b))])
			disk := memdisk.New()
			must(t, disk.MkdirAll(dir))
			disk.Put(name, lost)
			again, err := Open(Options{FS: disk, Dir: dir, HeldFrom: 1})
			require.NoError(t, err, "pad %d, sector at %d", pad, at)
			must(t, again.Close())
		}
	}
}

// TestAnySectorLost loses sectors of tails whose blocks begin anywhere in them,
// also with the last byte of one: whatever Raft holds is cut, not refused.
func TestAnySectorLost(t *testing.T) {
	for seed := 0; seed < 4000; seed += step(1, 40) {
		r := testRand(uint64(seed))
		disk := memdisk.New()
		l := mustOpen(t, Options{FS: disk, Dir: dir, SegmentSize: 8192, inline: true})
		n := 3 + r.IntN(30)
		synced, durable := r.IntN(n), uint64(0)
		for i := range n {
			var records []record
			for range r.IntN(4) {
				one := rec("m", strings.Repeat("x", r.IntN(300)))
				if r.IntN(4) == 0 { // longer than a sector
					one.Header = []byte(strings.Repeat("h", r.IntN(1500)))
				}
				records = append(records, one)
			}
			appendAll(t, l, block(uint64(i+1), records...))
			if i == synced {
				must(t, l.Sync())
				durable = uint64(i + 1)
			}
		}
		after := disk.CrashWith(memdisk.LoseRandom, r)
		again, err := Open(Options{FS: after, Dir: dir, HeldFrom: durable + 1, Durable: durable})
		require.NoError(t, err, "seed %d", seed)
		must(t, again.Close())
	}
}
