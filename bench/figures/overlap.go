package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A span is an event of a Chrome trace; times are microseconds.
type span struct {
	Name     string  `json:"name"`
	Category string  `json:"cat"`
	Phase    string  `json:"ph"`
	Start    float64 `json:"ts"`
	Length   float64 `json:"dur"`
}

func (s span) end() float64 { return s.Start + s.Length }

// readTrace returns the spans of a trace in the order of the file.
func readTrace(path string) ([]span, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var trace struct {
		Events []span `json:"traceEvents"`
	}
	if err := json.Unmarshal(text, &trace); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return trace.Events, nil
}

// medianStep returns the spans of the step of median length, from its forward pass to its
// optimizer, with times from the start of that pass in milliseconds.
func medianStep(spans []span) ([]span, error) {
	var steps []span // each from the start of its forward pass to the end of its optimizer
	for _, s := range spans {
		switch {
		case s.Phase == "X" && s.Name == "forward":
			steps = append(steps, span{Start: s.Start})
		case s.Phase == "X" && s.Name == "optimizer" && len(steps) > 0:
			last := &steps[len(steps)-1]
			last.Length = s.end() - last.Start
		}
	}
	steps = slices.DeleteFunc(steps, func(s span) bool { return s.Length == 0 })
	if len(steps) == 0 {
		return nil, errors.New("the trace has no step: a span forward and after it a span optimizer")
	}
	slices.SortFunc(steps, func(a, b span) int { return cmp.Compare(a.Length, b.Length) })
	median := steps[len(steps)/2]
	var step []span
	for _, s := range spans {
		if s.Phase == "X" && s.Start >= median.Start && s.end() <= median.end() {
			s.Start, s.Length = (s.Start-median.Start)/1000, s.Length/1000
			step = append(step, s)
		}
	}
	return step, nil
}

// The rows of the picture.
const (
	communicationRow = 0.0 // its bottom
	computeRow       = 1.2 // its bottom
	rowHeight        = 1.0
)

// overlap draws one step: the compute stream above the reductions.
func overlap(spans []span) (*plot.Plot, error) {
	step, err := medianStep(spans)
	if err != nil {
		return nil, err
	}
	p := newPlot()
	p.Title.Text = "One training step of rank 0: buckets are reduced while the backward pass runs"
	p.X.Label.Text = "milliseconds"
	p.Y.Min, p.Y.Max = communicationRow, computeRow+rowHeight
	for _, s := range step {
		row, colour, label := computeRow, computeColour, s.Name
		switch {
		case s.Category == "communication":
			row, colour, label = communicationRow, communicationColour, strings.TrimPrefix(s.Name, "AllReduce ")
		case s.Category != "compute":
			continue
		case strings.HasPrefix(s.Name, "wait"):
			colour, label = waitColour, ""
		}
		box, err := plotter.NewPolygon(plotter.XYs{
			{X: s.Start, Y: row}, {X: s.end(), Y: row}, {X: s.end(), Y: row + rowHeight}, {X: s.Start, Y: row + rowHeight},
		})
		if err != nil {
			return nil, err
		}
		box.Color, box.LineStyle.Width = colour, vg.Points(0.3)
		p.Add(box, spanLabel{s, row, label})
	}
	p.Add(caption{"reductions", communicationRow})
	p.X.Max = 0
	for _, s := range step {
		p.X.Max = max(p.X.Max, s.end())
	}
	return p, nil
}

// spanLabel writes a span's label into its box: horizontally if it fits, else vertically. It writes nothing
// into a box that is narrower than the height of the letters.
type spanLabel struct {
	span
	row   float64
	label string
}

// Plot implements [plot.Plotter].
func (l spanLabel) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := textStyle(p, color.White)
	style.XAlign = draw.XCenter
	switch box := x(l.end()) - x(l.Start); {
	case l.label == "" || style.Height(l.label) > box:
		return
	case width(style, l.label) > box:
		style.Rotation = math.Pi / 2
	}
	c.FillText(style, vg.Point{X: (x(l.Start) + x(l.end())) / 2, Y: y(l.row + rowHeight/2)}, l.label)
}

// caption writes a row's name at the left end of the row.
type caption struct {
	text string
	row  float64
}

// Plot implements [plot.Plotter].
func (t caption) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	c.FillText(textStyle(p, lineColour), vg.Point{X: x(0) + vg.Points(4), Y: y(t.row + rowHeight/2)}, t.text)
}
