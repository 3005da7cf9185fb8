package main

import (
	"encoding/csv"
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A bar is a workload with goddp's time divided by PyTorch's.
type bar struct {
	label string
	ratio float64
}

// readRatios reads a CSV table with the columns workload, machine, ratio and page. The first row holds the
// names of the columns.
func readRatios(path string) ([]bar, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var bars []bar
	for i, row := range rows[min(1, len(rows)):] {
		if len(row) != 4 {
			return nil, fmt.Errorf("%s: row %d has %d columns, want 4", path, i+2, len(row))
		}
		ratio, err := strconv.ParseFloat(row[2], 64)
		if err != nil || ratio <= 0 {
			return nil, fmt.Errorf("%s: row %d: %q is not a positive number", path, i+2, row[2])
		}
		bars = append(bars, bar{row[0] + ", " + row[1], ratio})
	}
	if len(bars) == 0 {
		return nil, fmt.Errorf("%s: no rows", path)
	}
	return bars, nil
}

// ratioPlot draws a bar for each workload, the first one at the top, and a line at ratio 1.
func ratioPlot(bars []bar) *plot.Plot {
	p := newPlot()
	p.Title.Text = "goddp's time divided by PyTorch's (shorter is faster)"
	p.X.Min, p.X.Max = 0, 1.1
	p.Y.Min, p.Y.Max = 0, float64(len(bars))
	for i, b := range bars {
		p.X.Max = max(p.X.Max, b.ratio*1.08)
		p.Add(row{b, float64(len(bars) - 1 - i)})
	}
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.5, Label: "0.5"}, {Value: 1, Label: "1: PyTorch"}}
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	p.Add(grid)
	return p
}

// row draws a bar with its ratio and its label.
type row struct {
	bar
	bottom float64 // the row's lower end, in the plot's coordinates
}

// Plot implements [plot.Plotter].
func (r row) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	colour := computeColour
	if r.ratio > 1 {
		colour = communicationColour
	}
	low, high := y(r.bottom+0.15), y(r.bottom+0.85)
	c.FillPolygon(colour, []vg.Point{{X: x(0), Y: low}, {X: x(r.ratio), Y: low}, {X: x(r.ratio), Y: high}, {X: x(0), Y: high}})
	style := textStyle(p, lineColour)
	label := fmt.Sprintf("%.2f  %s", r.ratio, r.label)
	at := vg.Point{X: x(r.ratio) + vg.Points(4), Y: (low + high) / 2}
	if at.X+width(style, label) > c.Max.X {
		style.Color, at.X = color.White, x(0)+vg.Points(4)
	}
	c.FillText(style, at, label)
}
