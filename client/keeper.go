package client

import (
	"errors"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// jobList holds jobs with leases of the same length, by when they must be looked
// after: those that come later, and those just extended, go to the end.
type jobList struct{ first, last *job }

func (l *jobList) push(j *job) {
	if j.prev = l.last; j.prev == nil {
		l.first = j
	} else {
		j.prev.next = j
	}
	l.last, j.next, j.list = j, nil, l
}

func (l *jobList) remove(j *job) {
	if j.prev == nil {
		l.first = j.next
	} else {
		j.prev.next = j.next
	}
	if j.next == nil {
		l.last = j.prev
	} else {
		j.next.prev = j.prev
	}
	j.prev, j.next, j.list = nil, nil, nil
}

// watch puts a job in the keeper's care. It is called under mu.
func (r *run) watch(j *job) {
	l := r.lists[j.runs]
	if l == nil {
		l = &jobList{}
		r.lists[j.runs] = l
	}
	l.push(j)
	if r.keepAt.IsZero() || j.look.Before(r.keepAt) {
		r.keepAt = j.look
		signal(r.keep)
	}
}

// unwatch takes a job out of it, if it is in. It is called under mu.
func (r *run) unwatch(j *job) {
	if j.list != nil {
		j.list.remove(j)
	}
}

// keeper extends leases at a third of their time while their messages are in
// hand, until end closes. It has the only timer, however many there are.
func (r *run) keeper(end <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		r.mu.Lock()
		due := r.due(now)
		r.keepAt = time.Time{}
		for lease, l := range r.lists {
			if l.first == nil {
				delete(r.lists, lease) // policies change
			} else if r.keepAt.IsZero() || l.first.look.Before(r.keepAt) {
				r.keepAt = l.first.look
			}
		}
		if at := r.keepAt; at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Until(at), 0))
		}
		r.mu.Unlock()
		for _, j := range due {
			r.extend(j, now)
		}
		select {
		case <-timer.C:
		case <-r.keep:
		case <-end:
			return
		}
	}
}

// due returns the jobs whose leases are to be extended, and gives up those whose
// have run out. It is called under mu.
func (r *run) due(now time.Time) (due []*job) {
	for _, l := range r.lists {
		for j := l.first; j != nil && !j.look.After(now); j = l.first {
			if l.remove(j); !j.until.After(now) {
				r.lose(j)
				continue
			}
			if j.look = now.Add(j.runs / 3); j.look.After(j.until) {
				j.look = j.until
			}
			l.push(j)
			due = append(due, j)
		}
	}
	return due
}

// lose notes that a job's lease is gone. It is called under mu.
func (r *run) lose(j *job) {
	j.lost = true
	if j.cancel != nil {
		j.cancel(ErrLeaseLost)
	}
}

// extend asks for another lease's length, without waiting for the answer: one
// that does not come leaves the lease to run out.
func (r *run) extend(j *job, now time.Time) {
	t := &settleTicket{item: Settlement{LeaseID: j.LeaseID, Do: DoExtend, Lease: j.runs}, size: 64, then: &extension{r, j, now}}
	_ = r.c.settleLane(j.Queue, DoExtend).add(t)
}

// extension is a job whose lease is asked to be extended.
type extension struct {
	r     *run
	j     *job
	asked time.Time
}

func (x *extension) answered(out wire.SettleResult, err error) {
	r, j := x.r, x.j
	if err == nil {
		err = lost(&out)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		j.until = x.asked.Add(j.runs)
	case j.list != nil && (errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrQueueNotFound)):
		// In hand, and not ours any more.
		r.unwatch(j)
		r.lose(j)
	}
}

// leaseOf returns how long a message's lease runs. Its id says when it began, by
// the server's clock, as does its end: the clock here does not matter.
func leaseOf(m *wire.LeasedMessage, asked time.Duration) time.Duration {
	if began, ok := ulidTime(m.LeaseID); ok {
		if d := time.Duration(int64(m.LeaseExpiresAt)-began) * time.Millisecond; d > 0 && d <= 24*time.Hour {
			return d
		}
	}
	if asked > 0 {
		return asked
	}
	return defaultLease
}

// ulidTime returns the time in a ULID, Unix ms: its first ten characters, in
// Crockford's base 32.
func ulidTime(id string) (ms int64, ok bool) {
	if len(id) != 26 {
		return 0, false
	}
	for i := range 10 {
		n := strings.IndexByte("0123456789ABCDEFGHJKMNPQRSTVWXYZ", id[i])
		if n < 0 {
			return 0, false
		}
		ms = ms<<5 | int64(n)
	}
	return ms, true
}
