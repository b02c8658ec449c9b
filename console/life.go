package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// life is the drawing of a message's life: one lane for each id that it had, on one axis of time.
//
// The axis is not linear: between two events it is as long as the logarithm of the time between
// them, so that milliseconds and days both are seen. Every stretch says how long it was.
type life struct {
	Width, Height int
	Lanes         []*lane
	Ticks         []tick
	Joins         []join
	Earlier       int // events before those that are drawn
}

// lane is one message, in one queue.
type lane struct {
	ID, Queue, State string
	Current          bool // the one whose page it is
	Y                int
	LabelX           int
	Anchor           string // of the label: start, end
	Stretches        []stretch
	Marks            []eventMark

	// While it is followed:
	dead  bool   // it is in a dead-letter queue
	kind  string // of the stretch that has begun; "" none
	since int    // x
	start wire.Time
	due   wire.Time // of a scheduled one
	words string
}

// stretch is a time in which nothing happened to a message: it waited, or a worker had it.
type stretch struct {
	Kind        string // scheduled, ready, leased, dead, gone
	X1, X2      int
	Text, Title string
	Inside      string // of a lease: which attempt, and whose
	Error       string // with which a lease ended
	Open        bool   // it lasts
	until       wire.Time
	took        string
	words       string // what the text says before the duration
}

// Wide is its width.
func (s *stretch) Wide() int { return max(s.X2-s.X1, 2) }

// Middle is its middle.
func (s *stretch) Middle() int { return (s.X1 + s.X2) / 2 }

// eventMark is an event on a lane.
type eventMark struct {
	X                  int
	Type, Title, Event string
}

// join is a message that becomes another one.
type join struct {
	X        int
	From, To *lane
}

// tick is a time on the axis.
type tick struct {
	X    int
	Text string
}

// Sizes of a drawing, in pixels.
const (
	lifeWidth   = 1206
	lifeMargin  = 16
	lifeTop     = 30 // the axis
	laneHeight  = 74
	laneLine    = 44 // of a lane's line below its top
	markGap     = 24 // between two events at the same time
	pointGap    = 3
	letter      = 6 // the width of a small letter, about
	labelWidth  = 300
	tickWidth   = 92
	fastestTime = 50 * time.Millisecond
)

// lifePainter draws.
type lifePainter struct {
	*life
	now     wire.Time
	points  []point // by time
	x       []int   // of events
	byID    map[string]*lane
	workers map[string]string // by lease
}

// point is a place on the axis: an event, or the beginning or end of something else.
type point struct {
	at    wire.Time
	event int // -1: none
	x     int
}

// paintLife draws the events from number first on; those before only say how it then was.
func paintLife(m *wire.Message, first int, now wire.Time) *life {
	d := &lifePainter{
		life: &life{Earlier: first}, now: now, byID: map[string]*lane{}, workers: workersOf(m.History),
	}
	d.layOut(m.History, first)
	for i := range m.History {
		d.event(&m.History[i], d.x[i], i >= first)
	}
	for _, l := range d.Lanes {
		if l.kind != "" {
			d.close(l, d.at(now), now, true, "")
		}
	}
	d.place(m)
	d.ticks(m.History, first)
	return d.life
}

// workersOf returns who had each lease.
func workersOf(events []wire.Event) map[string]string {
	workers := map[string]string{}
	for i := range events {
		if e := &events[i]; e.Type == "leased" {
			workers[e.LeaseID] = e.Worker
		}
	}
	return workers
}

// layOut finds the place of each event on the axis.
func (d *lifePainter) layOut(events []wire.Event, first int) {
	for i := range events {
		if i >= first {
			d.points = append(d.points, point{at: events[i].Time, event: i})
		}
		due := dueOf(&events[i])
		if due > max(events[i].Time, events[first].Time) && due < d.now {
			d.points = append(d.points, point{at: due, event: -1})
		}
	}
	d.points = append(d.points, point{at: d.now, event: -1})
	slices.SortStableFunc(d.points, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	least, weight := make([]int, len(d.points)), make([]float64, len(d.points))
	sum, fixed, marks := 0.0, 0, 0
	for i := range d.points {
		if i > 0 {
			between := time.Duration(d.points[i].at-d.points[i-1].at) * time.Millisecond
			weight[i] = math.Log1p(float64(between) / float64(fastestTime))
			least[i] = pointGap
		}
		if d.points[i].event >= 0 {
			if marks++; marks > 1 {
				least[i] = markGap
			}
		}
		sum, fixed = sum+weight[i], fixed+least[i]
	}
	d.Width = max(lifeWidth, fixed+2*lifeMargin+lifeWidth/3)
	room := float64(d.Width - 2*lifeMargin - fixed - markGap)
	x := float64(lifeMargin + markGap/2)
	d.x = make([]int, len(events))
	for i := range d.points {
		x += float64(least[i])
		if sum > 0 {
			x += room * weight[i] / sum
		}
		if d.points[i].x = int(x); d.points[i].event >= 0 {
			d.x[d.points[i].event] = int(x)
		}
	}
	for i := range first {
		d.x[i] = lifeMargin
	}
}

// at returns the place of a time that is on the axis.
func (d *lifePainter) at(t wire.Time) int {
	i := sort.Search(len(d.points), func(i int) bool { return d.points[i].at > t })
	if i == 0 {
		return lifeMargin
	}
	return d.points[i-1].x
}

// dueOf returns when a message may be delivered after an event, 0 if the event does not say.
func dueOf(e *wire.Event) wire.Time { return cmp.Or(e.DeliverAt, e.NextAt) }

// event goes on with the lane that an event is about.
func (d *lifePainter) event(e *wire.Event, x int, drawn bool) {
	id := e.MessageID
	if e.Type == "enqueued" {
		id = e.EventID
	}
	l := d.lane(id, e.Queue)
	wait := "ready"
	if l.dead {
		wait = "dead"
	}
	if drawn {
		l.Marks = append(l.Marks, eventMark{
			X: x, Type: e.Type, Event: e.EventID, Title: d.title(e),
		})
	}
	begin := func(kind, words string) {
		if l.kind != "" && drawn {
			d.close(l, x, e.Time, false, e.Error)
		}
		l.kind, l.words, l.since, l.start, l.due = kind, words, x, e.Time, 0
		if due := dueOf(e); due > e.Time {
			l.due = due
		}
	}
	switch e.Type {
	case "leased":
		begin("leased", strings.TrimSuffix(
			fmt.Sprintf("attempt %d · %s", e.Attempt, clip(40, plain(e.Worker))), " · "))
	case "enqueued", "lease_expired", "retried", "released", "returned":
		begin(wait, "waits")
	case "rescheduled":
		if dueOf(e) != 0 {
			begin(wait, "waits")
		}
	case "acked", "discarded", "dead_lettered", "replayed":
		begin("", "")
		l.State = e.Type
	case "resurrected":
		if l.kind = "gone"; len(l.Stretches) > 0 && drawn {
			last := &l.Stretches[len(l.Stretches)-1]
			l.since, l.start = last.X2, last.until
			d.close(l, x, e.Time, false, "")
		}
		l.kind = ""
	}
	if e.NewMessageID == "" {
		return
	}
	next := d.lane(e.NewMessageID, e.ToQueue)
	next.dead = e.Type == "dead_lettered"
	next.kind, next.words, next.since, next.start = "ready", "waits", x, e.Time
	if next.dead {
		next.kind = "dead"
	}
	if drawn {
		d.Joins = append(d.Joins, join{x, l, next})
	}
}

// lane returns the lane of a message.
func (d *lifePainter) lane(id, queue string) *lane {
	l := d.byID[id]
	if l == nil {
		l = &lane{ID: id, Queue: queue, since: lifeMargin}
		d.byID[id] = l
		d.Lanes = append(d.Lanes, l)
	}
	return l
}

// close ends the stretch of a lane. A wait that was due meanwhile is two: until then, and since.
func (d *lifePainter) close(l *lane, x int, at wire.Time, open bool, failed string) {
	add := func(kind, words string, from, to int, start, until wire.Time, open bool) {
		s := stretch{
			Kind: kind, X1: from, X2: to, until: until, Open: open, took: fine(until - start),
			words: words,
		}
		if kind == "leased" {
			s.Error = plain(failed)
		}
		l.Stretches = append(l.Stretches, s)
	}
	switch {
	case l.kind == "leased" || l.kind == "gone" || l.due == 0:
		add(l.kind, l.words, l.since, x, l.start, at, open)
	case l.due < at:
		due := d.at(l.due)
		add("scheduled", "scheduled", l.since, due, l.start, l.due, false)
		add(l.kind, l.words, due, x, l.due, at, open)
	default:
		add("scheduled", "scheduled", l.since, x, l.start, at, open)
	}
}

// place finds the height of each lane, and what there is room to write.
func (d *lifePainter) place(m *wire.Message) {
	d.Lanes = slices.DeleteFunc(d.Lanes, func(l *lane) bool { // it was over before
		return len(l.Marks)+len(l.Stretches) == 0
	})
	for i, l := range d.Lanes {
		l.Y, l.Current = lifeTop+i*laneHeight+laneLine, l.ID == m.ID
		l.State = cmp.Or(l.State, stateNow(m, l))
		d.finish(l)
	}
	d.Height = lifeTop + len(d.Lanes)*laneHeight + 8
}

// stateNow is the state of a lane that has not ended.
func stateNow(m *wire.Message, l *lane) string {
	if l.ID == m.ID {
		return m.State
	}
	if l.dead {
		return "dead"
	}
	return l.kind
}

// finish finds the words of a lane's parts.
func (d *lifePainter) finish(l *lane) {
	begin := d.Width
	for i := range l.Stretches {
		s := &l.Stretches[i]
		if begin = min(begin, s.X1); s.Kind == "gone" {
			continue
		}
		took := s.took
		if s.Open {
			took = "for " + took
		}
		s.Title = s.words + " " + took
		room := (s.X2 - s.X1 - 2) / letter
		if s.Kind == "leased" {
			attempt, worker, _ := strings.Cut(s.words, " · ")
			number := "#" + strings.TrimPrefix(attempt, "attempt ")
			s.Title = s.words + " · " + took
			s.Text = fit(room, attempt+" · "+took, number+" · "+took, took)
			s.Inside = worker
		} else {
			s.Text = fit(room, s.Title, took)
		}
		if after := (d.room(l, i) - 8) / letter; after < 12 {
			s.Error = ""
		} else {
			s.Error = clip(after, s.Error)
		}
	}
	d.label(l, begin)
}

// fit returns the first text that is not longer than n letters, "" for none.
func fit(n int, texts ...string) string {
	for _, text := range texts {
		if len([]rune(text)) <= n {
			return text
		}
	}
	return ""
}

// fine returns a duration in digits enough to compare short ones.
func fine(ms wire.Time) string {
	switch d := time.Duration(ms) * time.Millisecond; {
	case d >= time.Minute || d < time.Second:
		return span(d)
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}

// room is the space below a stretch up to the next lease, or to the end.
func (d *lifePainter) room(l *lane, i int) int {
	for _, s := range l.Stretches[i+1:] {
		if s.Kind == "leased" {
			return s.X1 - l.Stretches[i].X1
		}
	}
	return d.Width - l.Stretches[i].X1
}

// label writes a lane's name above its beginning, or before its end where there is no room.
func (d *lifePainter) label(l *lane, x int) {
	l.LabelX, l.Anchor = x+7, "start" // beside the line that leads there
	if x < lifeMargin+markGap {
		l.LabelX = lifeMargin / 2
	}
	if x > d.Width-labelWidth {
		l.LabelX, l.Anchor = d.Width-lifeMargin, "end"
	}
}

// title is all that is known of an event.
func (d *lifePainter) title(e *wire.Event) string {
	parts := []string{strings.ReplaceAll(e.Type, "_", " "), e.Time.String()}
	if e.Attempt > 0 {
		parts = append(parts, "attempt "+strconv.FormatInt(e.Attempt, 10))
	}
	for _, p := range [][2]string{
		{"worker ", cmp.Or(e.Worker, d.workers[e.LeaseID])}, {"by ", e.Actor},
		{"reason: ", e.Reason}, {"", e.Why}, {"error: ", e.Error},
	} {
		if p[1] != "" {
			parts = append(parts, p[0]+clip(300, plain(p[1])))
		}
	}
	return strings.Join(parts, " · ")
}

// ticks writes times on the axis where there is room.
func (d *lifePainter) ticks(events []wire.Event, first int) {
	last, day := -2*tickWidth, ""
	end := d.at(d.now)
	for i := first; i < len(events); i++ {
		t, x := events[i].Time.Time(), d.x[i]
		text, width := t.Format("15:04:05.000"), tickWidth
		if today := t.Format("2 Jan "); today != day {
			text, width = today+text, tickWidth+36
			if x-last < width {
				continue
			}
			day = today
		}
		if x-last >= tickWidth && end-x >= width {
			d.Ticks, last = append(d.Ticks, tick{x, text}), x+width-tickWidth
		}
	}
	d.Ticks = append(d.Ticks, tick{end, "now"})
}
