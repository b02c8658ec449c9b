package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg"
)

var (
	green = color.RGBA{R: 0x2e, G: 0x8b, B: 0x57, A: 0xff}
	red   = color.RGBA{R: 0xc0, G: 0x39, B: 0x2b, A: 0xff}
	grey  = color.RGBA{R: 0x95, G: 0xa5, B: 0xa6, A: 0xff}
	dark  = color.RGBA{R: 0x33, G: 0x33, B: 0x33, A: 0xff}
)

// bar is one line of a plot: a value with its extremes.
type bar struct {
	label string
	spread
	color color.Color
}

// plotTargets draws how far each target is reached, on a scale of ratios.
func (c *comparison) plotTargets(file string) error {
	var bars []bar
	for _, v := range c.verdicts() {
		if !v.measured || v.Ratio == 0 && v.Most == 0 {
			continue
		}
		b := bar{label: v.Work + " " + v.Metric + " : " + v.Against, color: red}
		if v.Most > 0 {
			b.label = v.Work + " " + v.Metric
		}
		if v.reached {
			b.color = green
		}
		part := func(x float64) float64 {
			w := v
			w.our.median, w.ratio.median = x, x
			return w.part()
		}
		of := v.ratio
		if v.Most > 0 {
			of = v.our
		}
		b.median = part(of.median)
		b.min, b.max = min(part(of.min), part(of.max)), max(part(of.min), part(of.max))
		bars = append(bars, b)
	}
	return drawBars(file, "What is reached of each target (1: all of it); median and extremes", bars, 1)
}

// plotRates draws the messages a second of every work and system.
func (c *comparison) plotRates(file string) error {
	var bars []bar
	for _, m := range c.Works {
		for _, s := range m.systems() {
			v, ok := m.all(s, rate)
			if !ok || m.Config.Rate > 0 || v.median < 1000 {
				continue
			}
			b := bar{label: m.Name + "  " + s, spread: v, color: grey}
			if len(s) > 5 && s[:5] == "qlogd" {
				b.color = green
			}
			bars = append(bars, b)
		}
	}
	return drawBars(file, "Messages/s; median and extremes", bars, 0)
}

// plotGrowth draws each number beside that of the first state.
func (c *comparison) plotGrowth(file string) error {
	var bars []bar
	for _, m := range c.Works {
		for _, s := range m.systems() {
			for _, k := range order {
				v, ok := m.ratio(s, m.Base, k)
				if !ok || s == m.Base {
					continue
				}
				b := bar{label: s + ": " + metrics[k].title, spread: v, color: grey}
				bars = append(bars, b)
			}
		}
	}
	return drawBars(file, "Each number beside that of the first state (1: the same); median and extremes of the ratios", bars, 1)
}

// drawBars draws horizontal bars on a logarithmic scale, the first on top, with a
// line at mark, if that is not 0.
func drawBars(file, title string, bars []bar, mark float64) error {
	p := plot.New()
	sans(p)
	p.Title.Text = title
	low, high := math.Inf(1), math.Inf(-1)
	slices.Reverse(bars)
	var names []string
	for _, b := range bars {
		low, high = min(low, b.min), max(high, b.max)
		names = append(names, b.label)
	}
	if len(bars) == 0 {
		return fmt.Errorf("%s: there is nothing to draw", file)
	}
	low, high = low/1.5, high*1.2
	if mark > 0 {
		low, high = min(low, mark/1.5), max(high, mark*1.2)
	}
	p.X.Min, p.X.Max = low, high
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = ticks{}
	p.Y.Min, p.Y.Max = -0.7, float64(len(bars))-0.3
	p.NominalY(names...)
	for i, b := range bars {
		y := float64(i)
		body, err := plotter.NewPolygon(plotter.XYs{{X: low, Y: y - 0.3}, {X: b.median, Y: y - 0.3}, {X: b.median, Y: y + 0.3}, {X: low, Y: y + 0.3}})
		if err != nil {
			return err
		}
		body.Color, body.LineStyle.Width = b.color, 0
		reach, err := plotter.NewLine(plotter.XYs{{X: b.min, Y: y}, {X: b.max, Y: y}})
		if err != nil {
			return err
		}
		reach.Color, reach.Width = dark, vg.Points(1.2)
		p.Add(body, reach)
	}
	if mark > 0 {
		at, err := plotter.NewLine(plotter.XYs{{X: mark, Y: -0.7}, {X: mark, Y: float64(len(bars)) - 0.3}})
		if err != nil {
			return err
		}
		at.Color, at.Width, at.Dashes = dark, vg.Points(1), []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(at)
	}
	p.Y.Min, p.Y.Max = -0.7, float64(len(bars))-0.3
	p.X.Min, p.X.Max = low, high
	return p.Save(24*vg.Centimeter, vg.Length(len(bars)+4)*0.6*vg.Centimeter, file)
}

// sans sets all text in a font that browsers have.
func sans(p *plot.Plot) {
	for _, t := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		t.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: t.Font.Size}
	}
	p.BackgroundColor = color.White
}

// ticks are 1, 2 and 5 of each power of ten.
type ticks struct{}

func (ticks) Ticks(low, high float64) (out []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= low && v <= high {
				out = append(out, plot.Tick{Value: v, Label: short(v)})
			}
		}
	}
	return out
}
