package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// report prints the tables of a saved comparison.
func report(args []string) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	in := fs.String("in", "results/compare.json", "the results that compare saved")
	md := fs.String("md", "", "write the Markdown tables to this file instead of stdout")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	b, err := os.ReadFile(*in)
	if err != nil {
		return err
	}
	c := &comparison{}
	if err := json.Unmarshal(b, c); err != nil {
		return fmt.Errorf("%s: %w", *in, err)
	}
	if *md == "" {
		return c.markdown(os.Stdout)
	}
	f, err := os.Create(*md)
	if err != nil {
		return err
	}
	return errors.Join(c.markdown(f), f.Close())
}

// markdown writes the tables.
func (c *comparison) markdown(w io.Writer) error {
	p := &printer{w: w}
	p.f("%s, commit %s: %s, %d cores, %s, Linux %s, data on %s, %s.\n",
		c.Began.Format("2006-01-02"), c.Commit, c.Machine.CPU, c.Machine.Cores,
		c.Machine.Memory, c.Machine.Kernel, c.Machine.Disk, c.Machine.Go)
	p.f("Payloads of %d random bytes; measured in turns, rounds: %d, each on fresh servers "+
		"with %s of warm-up and %s measured. Median (lowest to highest); a ratio (×) is "+
		"the median of those of two in the same round.\n\n",
		c.Set.Size, c.Set.Rounds, c.Set.Warmup, c.Set.Slice)

	c.targets(p)
	for _, m := range c.Works {
		m.table(p)
	}
	if len(c.Systems) > 0 {
		p.f("### What is durable when it says yes\n\n| system | |\n|---|---|\n")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Systems)) {
		s := c.Systems[name]
		durable := s.Durable
		if s.Version != "" {
			durable += "; " + s.Version
		}
		if s.Missing != "" {
			durable += "; not measured: " + s.Missing
		}
		p.f("| %s | %s |\n", name, durable)
	}
	p.f("\n")
	if len(c.Calib) > 0 {
		p.f("### The machine meanwhile\n\n| at | SHA-256 of a core, MB/s " +
			"| append of 4 KiB and fdatasync, p50 ms | p99 ms | load average | steal %% |\n" +
			"|---|---|---|---|---|---|\n")
		for _, k := range c.Calib {
			p.f("| %s | %.0f | %.2f | %.2f | %s | %.1f |\n", k.At.Format(time.TimeOnly),
				k.SHA256, k.SyncP50, k.SyncP99, k.LoadAvg, k.StealPct)
		}
		p.f("\n")
	}
	if len(c.Command) > 1 {
		p.f("Command: `go run . %s`\n", strings.Join(c.Command[1:], " "))
	}
	return p.err
}

// targets writes what came of the targets.
func (c *comparison) targets(p *printer) {
	all := c.verdicts()
	if len(all) == 0 {
		return
	}
	reached, of := 0, 0
	for _, v := range all {
		if v.Ratio > 0 || v.Most > 0 {
			of++
			if v.reached {
				reached++
			}
		}
	}
	p.f("### Targets: %d of %d reached\n\n", reached, of)
	p.f("| work | what | qlogd | against | theirs | ratio | wanted | |\n")
	p.f("|---|---|---|---|---|---|---|---|\n")
	last := ""
	for _, v := range all {
		name := "`" + v.Work + "` " + v.title
		if v.Work == last {
			name = "″"
		}
		last = v.Work
		p.f("| %s | %s | %s | %s | %s | %s | %s | %s |\n", name, metrics[v.Metric].title,
			v.our.cell(), strings.ReplaceAll(v.Against, "+", " and then "), v.his.cell(),
			v.ratio.cell(), v.goal(), v.word())
	}
	p.f("\n")
}

// cell is a spread in a table.
func (s spread) cell() string {
	if s == (spread{}) {
		return "–"
	}
	return s.String()
}

// table writes what was measured of a work.
func (m *measured) table(p *printer) {
	p.f("### `%s`: %s\n\n", m.Name, m.Title)
	var columns []string
	for _, k := range order {
		for _, r := range m.Runs {
			if _, ok := r.Values[k]; ok {
				columns = append(columns, k)
				break
			}
		}
	}
	systems, main := m.systems(), mainMetric(m)
	p.f("| |")
	for _, k := range columns {
		p.f(" %s |", metrics[k].title)
	}
	between := len(systems) > 1
	if between {
		p.f(" %s, %s : it |", metrics[main].title, systems[0])
		columns = append(columns, "")
	}
	p.f("\n|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, s := range systems {
		p.f("| %s |", s)
		for _, k := range columns {
			p.f(" %s |", m.cell(s, k, systems[0], main))
		}
		p.f("\n")
	}
	for _, r := range m.Runs {
		if r.Error != "" {
			p.f("\n%s failed in round %d: %s\n", r.System, r.Round, firstLine(r.Error))
		}
	}
	p.f("\n")
}

// cell is a system's number, "" the ratio of the first to it.
func (m *measured) cell(system, metric, first, main string) string {
	if metric == "" {
		if v, ok := m.ratio(first, system, main); ok && system != first {
			return v.String()
		}
		return ""
	}
	v, ok := m.all(system, metric)
	out := v.String()
	switch {
	case !ok:
		return "–"
	case metric == rss:
		out = fmt.Sprintf("%.0f MB", v.median/1e6)
	}
	return out
}

// mainMetric is what a work is about.
func mainMetric(m *measured) string {
	switch {
	case strings.HasPrefix(m.Name, "latency"), strings.HasPrefix(m.Name, "poll"):
		return p50
	case strings.HasPrefix(m.Name, "memory"):
		return eachBytes
	}
	return rate
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
