package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// spread is what was measured several times.
type spread struct{ median, min, max float64 }

// of returns the spread of values; ok is false where there are none.
func of(values []float64) (s spread, ok bool) {
	if len(values) == 0 {
		return s, false
	}
	v := slices.Sorted(slices.Values(values))
	return spread{(v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[0], v[len(v)-1]}, true
}

// String is the median, and the extremes in brackets.
func (s spread) String() string {
	return fmt.Sprintf("%s (%s to %s)", short(s.median), short(s.min), short(s.max))
}

// short writes a number in three digits, or whole.
func short(v float64) string {
	if v >= 1000 || v <= -1000 {
		return humanize.Comma(int64(v + 0.5))
	}
	return fmt.Sprintf("%.3g", v)
}

// byRound is what a system had in each round that went well. A+B is what the two
// give one after the other.
func (m *measured) byRound(system, metric string) map[int]float64 {
	parts := strings.Split(system, "+")
	out := map[int]float64{}
	seen := map[int]int{}
	for _, r := range m.Runs {
		v, ok := r.Values[metric]
		if r.Error != "" || !ok || !slices.Contains(parts, r.System) || v == 0 && len(parts) > 1 {
			continue
		}
		seen[r.Round]++
		if len(parts) > 1 {
			v = 1 / v
		}
		out[r.Round] += v
	}
	for round := range out {
		if seen[round] < len(parts) {
			delete(out, round)
		} else if len(parts) > 1 {
			out[round] = 1 / out[round]
		}
	}
	return out
}

// all is what a system had, over all rounds.
func (m *measured) all(system, metric string) (spread, bool) {
	var v []float64
	for _, x := range m.byRound(system, metric) {
		v = append(v, x)
	}
	return of(v)
}

// ratio is that of two systems in the same round.
func (m *measured) ratio(a, b, metric string) (spread, bool) {
	var v []float64
	other := m.byRound(b, metric)
	for round, x := range m.byRound(a, metric) {
		if y := other[round]; y > 0 {
			v = append(v, x/y)
		}
	}
	return of(v)
}

// systems are those that were measured, in the order of the first round.
func (m *measured) systems() (out []string) {
	for _, r := range m.Runs {
		if !slices.Contains(out, r.System) {
			out = append(out, r.System)
		}
	}
	return out
}

// verdict is what came of a target.
type verdict struct {
	wanted
	title    string
	our, his spread
	ratio    spread
	measured bool
	reached  bool
}

// verdicts holds a run against the targets.
func (c *comparison) verdicts() (out []verdict) {
	for _, t := range targets {
		i := slices.IndexFunc(c.Works, func(m *measured) bool { return m.Name == t.Work })
		if i < 0 {
			continue
		}
		m := c.Works[i]
		if slices.ContainsFunc(strings.Split(t.Against, "+"), func(name string) bool {
			_, meant := c.Systems[name]
			return !meant
		}) {
			continue // a run of some systems only
		}
		v := verdict{wanted: t, title: m.Title}
		var a, b, r bool
		v.our, a = m.all(t.Ours, t.Metric)
		v.his, b = m.all(t.Against, t.Metric)
		v.ratio, r = m.ratio(t.Ours, t.Against, t.Metric)
		v.measured = a && b && r
		if t.Most > 0 {
			v.measured = a
		}
		switch {
		case !v.measured:
		case t.Most > 0:
			v.reached = v.our.median <= t.Most
		case metrics[t.Metric].less:
			v.reached = v.ratio.median <= t.Ratio
		default:
			v.reached = v.ratio.median >= t.Ratio
		}
		out = append(out, v)
	}
	return out
}

// goal is the target in words.
func (v verdict) goal() string {
	switch {
	case v.Most > 0:
		return "at most " + short(v.Most)
	case v.Ratio == 0:
		return "–"
	case metrics[v.Metric].less:
		return "at most " + short(v.Ratio)
	}
	return "at least " + short(v.Ratio)
}

func (v verdict) word() string {
	switch {
	case !v.measured:
		return "not measured"
	case v.Most == 0 && v.Ratio == 0:
		return ""
	case v.reached:
		return "reached"
	}
	return "**missed**"
}
