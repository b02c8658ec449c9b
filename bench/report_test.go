package main

import (
	"strings"
	"testing"
	"time"
)

// made is a run in which qlogd does 150 and 100 where the others do 100 and 200,
// in rounds of which a third failed.
func made() *comparison {
	c := &comparison{
		Began: time.Unix(1e9, 0).UTC(), Commit: "abc", Command: []string{"bench", "compare"},
		Set: settings{Rounds: 3, Size: 1024},
		Systems: map[string]about{q3: {Durable: "all"}, natsR3: {Durable: "all"},
			natsLax: {Missing: "it is not there"}, limitRaft: {}, limitWeb: {}},
	}
	add := func(work, metric string, ours, theirs float64) {
		m := &measured{Name: work, Title: "title of " + work}
		run := func(system string, round int, value float64, failed string) {
			m.Runs = append(m.Runs, &sample{System: system, Round: round, Error: failed,
				Values: map[string]float64{metric: value}})
		}
		for round := 1; round <= 2; round++ {
			run(q3, round, ours*float64(round), "")
			run(natsR3, round, theirs*float64(round), "")
		}
		run(q3, 3, 1e6, "")
		run(natsR3, 3, 1, "broke\nin two")
		c.Works = append(c.Works, m)
	}
	add("produce3", rate, 1500, 1000)
	add("cycle3", rate, 1000, 2000)
	add("latency3", p50, 1, 10)
	c.Works = append(c.Works, &measured{Name: "json3", Runs: []*sample{
		{System: q3, Round: 1, Values: map[string]float64{rate: 60}},
		{System: limitRaft, Round: 1, Values: map[string]float64{rate: 100}},
		{System: limitWeb, Round: 1, Values: map[string]float64{rate: 100}},
	}})
	return c
}

func TestVerdicts(t *testing.T) {
	want := map[string]string{
		"produce3 rate " + natsR3: "reached", "cycle3 rate " + natsR3: "**missed**",
		"latency3 p50_ms " + natsR3: "reached", "produce3 rate " + natsLax: "not measured",
		"json3 rate " + inSeries: "reached",
	}
	for _, v := range made().verdicts() {
		if w, ok := want[v.Work+" "+v.Metric+" "+v.Against]; ok && v.Ours == q3 {
			delete(want, v.Work+" "+v.Metric+" "+v.Against)
			if v.word() != w {
				t.Errorf("%+v is %s, want %s", v, v.word(), w)
			}
		}
		if v.Against == inSeries && v.Ours == q3 && v.his.median != 50 {
			t.Errorf("100 and then 100 is %v", v.his.median)
		}
		// The round that failed does not count.
		if v.Work == "produce3" && v.Against == natsR3 && (v.ratio != spread{1.5, 1.5, 1.5}) {
			t.Errorf("ratio %v", v.ratio)
		}
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := made().markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 1.5 (1.5 to 1.5) | at least 1.5 | reached |", "**missed**",
		"failed in round 3: broke\n", "not measured: it is not there",
		"Command: `go run . compare`",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}

// TestTargets sees to it that all that is planned exists.
func TestTargets(t *testing.T) {
	plan, err := planned(nil, nil)
	if err != nil || len(plan) == 0 {
		t.Fatal(err)
	}
	for _, p := range plan {
		for _, name := range p.systems {
			if _, err := systemNamed(name, "qlogd"); err != nil {
				t.Error(err)
			}
		}
	}
	for _, target := range targets {
		if _, ok := metrics[target.Metric]; !ok {
			t.Errorf("%+v: no such metric", target)
		}
	}
	pair, err := planned([]string{"singles1"}, []string{q1, natsR1})
	if err != nil || len(pair) != 1 || len(pair[0].systems) != 2 {
		t.Errorf("%+v, %v", pair, err)
	}
	if _, err := planned([]string{"nothing1"}, nil); err == nil {
		t.Error("a work that does not exist was planned")
	}
}
