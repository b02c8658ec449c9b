package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress is a bar on stderr, for people who wait: only on a terminal, and
// only once it has taken a second.
type progress struct {
	a     *app
	label string
	began time.Time
	bar   *progressbar.ProgressBar
	off   bool
}

func (a *app) progress(label string, on bool) *progress {
	return &progress{a: a, label: label, began: time.Now(), off: !on || !terminal(a.stderr)}
}

// set tells how much of how much is done.
func (p *progress) set(done, total int64) {
	if p.off || total <= 0 || p.bar == nil && time.Since(p.began) < time.Second {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(p.a.stderr), progressbar.OptionSetDescription(p.label),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(),
			progressbar.OptionEnableColorCodes(p.a.getenv("NO_COLOR") == ""))
	}
	p.bar.ChangeMax64(total)
	_ = p.bar.Set64(min(done, total))
}

// done takes the bar away.
func (p *progress) done() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	p.off = true
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
