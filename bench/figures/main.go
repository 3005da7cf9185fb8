// Command figures draws the picture of the README that shows goddp's time divided by PyTorch's, from a table of workloads.
//
//	go run ./bench/figures docs/figures/ratios.csv docs/figures/ratios.svg
//
// docs/figures/make.sh makes both pictures of the README.
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

	"github.com/goddp/goddp/internal/picture"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: figures TABLE.csv PICTURE.svg")
		os.Exit(2)
	}
	if err := paint(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// paint draws a bar for each row of a table, the first one at the top, and a line at ratio 1.
func paint(table, out string) error {
	bars, err := readRatios(table)
	if err != nil {
		return err
	}
	p := picture.New()
	p.HideY()
	p.Title.Text = "goddp's time divided by PyTorch's (shorter is faster)"
	p.X.Min, p.X.Max = 0, 1.1
	p.Y.Min, p.Y.Max = 0, float64(len(bars))
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	p.Add(grid)
	for i, b := range bars {
		p.X.Max = max(p.X.Max, b.ratio*1.12)
		p.Add(row{b, float64(len(bars) - 1 - i)})
	}
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.5, Label: "0.5"}, {Value: 1, Label: "1 (PyTorch)"}}
	height := vg.Length(len(bars))*vg.Centimeter + 2.5*vg.Centimeter
	return picture.Save(out, picture.Width, height, nil, p.Draw)
}

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

// A row draws a bar with its ratio, and its label above it.
type row struct {
	bar
	bottom float64 // the row's lower end, in the plot's coordinates
}

// Plot implements [plot.Plotter].
func (r row) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	colour := picture.Colours[0]
	if r.ratio > 1 {
		colour = picture.Colours[1]
	}
	low, high := y(r.bottom+0.06), y(r.bottom+0.46)
	c.FillPolygon(colour, []vg.Point{{X: x(0), Y: low}, {X: x(r.ratio), Y: low}, {X: x(r.ratio), Y: high}, {X: x(0), Y: high}})
	style := picture.TextStyle(p, color.Black)
	c.FillText(style, vg.Point{X: x(0), Y: y(r.bottom + 0.76)}, r.label)
	c.FillText(style, vg.Point{X: x(r.ratio) + vg.Points(4), Y: (low + high) / 2}, fmt.Sprintf("%.2f", r.ratio))
}
