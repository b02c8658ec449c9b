package raft

import "time"

// Clock returns the log's time at this instant, Unix ms: what the leader would stamp.
func (r *Replica) Clock() int64 {
	if !r.Leader() {
		r.followClock()
	}
	return r.clock.Now()
}

// followClock adopts the leader's time as of its last status.
func (r *Replica) followClock() {
	var from MemberStatus
	for _, v := range r.remotes() {
		if v.Status.Leads && v.Status.Term > from.Status.Term {
			from = v
		}
	}
	r.clock.Follow(r.fsm.progress().clock, from.Status.Clock, from.Seen)
}

// agreeOnTime looks at the voters' clocks, on a new leader, as their answers arrive.
func (r *Replica) agreeOnTime() {
	if elected, asks := r.clock.Asks(); asks {
		r.clock.Agree(wallsSince(r.remotes(), elected), len(r.voters()))
		r.b.signal() // time may have gone forward: something is due
	}
}

// wallsSince returns the wall clocks of the voters that have answered since an instant. Older
// answers may have been corrected since: that of a leader that has just died, together with another
// that is off, could outvote a right one.
func wallsSince(views []MemberStatus, since time.Time) (walls []int64) {
	for i := range views {
		if v := &views[i]; v.Votes && v.Reachable && v.Seen.After(since) {
			// What has passed since is by the monotonic clock: the wall clock may have jumped.
			walls = append(walls, v.Status.Wall+time.Since(v.Seen).Milliseconds())
		}
	}
	return walls
}
