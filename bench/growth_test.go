package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExperiments sees to it that each state has a node and a name of its own.
func TestExperiments(t *testing.T) {
	s := &settings{Waiting: 2000, Most: 3000}
	for _, e := range append(growths(s), stalling(s)...) {
		names := map[string]bool{}
		for _, st := range e.states {
			if names[st.name] || st.as != "" && !names[st.as] {
				t.Errorf("%s: %q is there twice, or shares a node that comes later", e.name, st.name)
			}
			names[st.name] = true
		}
		for _, sl := range e.slices {
			put := sl.put
			put.Size, put.Duration = 100, 1
			if err := put.Check(); err != nil {
				t.Errorf("%s: %v", e.name, err)
			}
			for metric := range sl.take {
				if _, ok := metrics[metric]; !ok {
					t.Errorf("%s: no metric %s", e.name, metric)
				}
			}
		}
	}
}

// TestGrowthPlot draws states that are held against the first.
func TestGrowthPlot(t *testing.T) {
	c := &comparison{Works: []*measured{{Name: "waiting", Base: "few", Runs: []*sample{
		{System: "few", Round: 1, Values: map[string]float64{rate: 100, produceP50: 1}},
		{System: "many", Round: 1, Values: map[string]float64{rate: 90, produceP50: 1.2}},
	}}}}
	file := filepath.Join(t.TempDir(), "growth.svg")
	if err := c.plotGrowth(file); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "many: produce p50") {
		t.Errorf("%v\n%.300s", err, b)
	}
	var b strings.Builder
	if err := c.markdown(&b); err != nil || !strings.Contains(b.String(), "90 **×0.9** (0.9 to 0.9)") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
