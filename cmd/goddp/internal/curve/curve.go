// Package curve draws the files that package progress writes.
package curve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A Run is the content of a file of package progress: for each name, the points that have
// this name, in the order of the file.
type Run struct {
	Name   string
	Series map[string][]Point
}

// A Point is a number at a step and a time.
type Point struct{ Step, Time, Number float64 }

// maxLine is the longest line of a file, in bytes.
const maxLine = 1 << 20

// Read reads a run. A line with time 0 and no numbers, or with a lower time or step than the previous line, starts a
// resumed run, or a new run in the same file. From its step on, its numbers replace the earlier ones. A resumed run
// counts its time from 0, so Read adds the time that the run had reached at that step. Read skips empty lines, and
// incomplete last lines of killed processes, also before a resumed run. The error for another invalid line contains
// the line number.
func Read(path string) (*Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	run := &Run{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), Series: map[string][]Point{}}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	var bad error // the error of the previous line
	n := 0
	var previous Point // the previous line, with its time in the file
	offset := 0.0      // time offset of a resumed run
	for lines.Scan() {
		n++
		text := bytes.TrimSpace(bytes.TrimPrefix(lines.Bytes(), []byte("\ufeff"))) // editors of some systems begin a file with this mark
		if len(text) == 0 {
			continue
		}
		var members map[string]any
		err := json.Unmarshal(text, &members)
		at := Point{Step: number(members["step"]), Time: number(members["time"])}
		delete(members, "step")
		delete(members, "time")
		isFirst := err == nil && len(members) == 0 && at.Time == 0 // the line begins a new or resumed run
		if bad != nil && !isFirst {
			return nil, bad
		}
		if bad = nil; err != nil {
			bad = fmt.Errorf("%s: line %d: %w", path, n, err)
			continue
		}
		if isFirst || at.Time < previous.Time || at.Step < previous.Step {
			offset = run.cut(at.Step, isFirst && at.Step > 0)
		}
		previous = at
		at.Time += offset
		for name, v := range members {
			at.Number = number(v)
			all := run.Series[name]
			if n := len(all); n > 0 && all[n-1].Step == at.Step {
				all = all[:n-1]
			}
			run.Series[name] = append(all, at)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: line %d: %w", path, n+1, err)
	}
	if len(run.Series) == 0 {
		return nil, fmt.Errorf("%s: contains no numbers", path)
	}
	return run, nil
}

// cut removes the points after step, and returns the latest time of the points that are left. If it is not known that
// the run is resumed, and there is no point before step, this is a new run: cut removes all points and returns 0.
func (r *Run) cut(step float64, isResumed bool) (latest float64) {
	for name, all := range r.Series {
		r.Series[name] = slices.DeleteFunc(all, func(p Point) bool { return p.Step > step })
		for _, p := range r.Series[name] {
			latest, isResumed = max(latest, p.Time), isResumed || p.Step < step
		}
	}
	if !isResumed {
		clear(r.Series)
		return 0
	}
	maps.DeleteFunc(r.Series, func(_ string, all []Point) bool { return len(all) == 0 })
	return latest
}

// number converts a JSON value, which is a number or a string such as "NaN".
func number(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case string:
		if x, err := strconv.ParseFloat(v, 64); err == nil {
			return x
		}
	}
	return math.NaN()
}

// Options selects the curves and the axes.
type Options struct {
	Names []string // the names to draw, each in a row of panels; nil means all names except those in held
	Axes  []string // the horizontal axes, a panel of each row for each: "steps" or "seconds"; nil means steps
	Log   bool     // the vertical axis is logarithmic
}

// held holds the names of the numbers that package progress records about the process's
// memory and goroutines.
var held = []string{"heap_bytes", "goroutines", "device_bytes"}

// colours holds the colours of the runs. Most people with a colour vision deficiency can
// distinguish them (Okabe and Ito, "Color Universal Design", 2008).
var colours = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255},
}

// The size of one panel.
const (
	width  = 18 * vg.Centimeter
	height = 8 * vg.Centimeter
)

// Save draws runs into a file whose name ends with .svg, .png or .pdf. There is a panel per name and axis, with a
// line for each run that has the name.
func Save(path string, runs []*Run, opts Options) error {
	names := opts.Names
	if names == nil {
		for _, r := range runs {
			for name := range r.Series {
				if !slices.Contains(names, name) && !slices.Contains(held, name) {
					names = append(names, name)
				}
			}
		}
		slices.Sort(names)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s: the runs record no numbers except %q, which are drawn only if named", path, held)
	}
	axes := opts.Axes
	if axes == nil {
		axes = []string{"steps"}
	}
	var panels [][]*plot.Plot
	for _, name := range names {
		var row []*plot.Plot
		for _, axis := range axes {
			p, err := panel(name, axis, runs, opts)
			if err != nil {
				return err
			}
			row = append(row, p)
		}
		panels = append(panels, row)
	}
	for column := range axes {
		share(panels, column)
	}
	columns := vg.Length(len(axes))
	canvas, err := draw.NewFormattedCanvas(width*columns, height*vg.Length(len(panels)), strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: len(axes), PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2}
	for i, row := range plot.Align(panels, tiles, draw.New(canvas)) {
		for j, place := range row {
			panels[i][j].Draw(place)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// share gives the panels of a column the same horizontal axis.
func share(panels [][]*plot.Plot, column int) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, row := range panels {
		low, high = min(low, row[column].X.Min), max(high, row[column].X.Max)
	}
	for _, row := range panels {
		row[column].X.Min, row[column].X.Max = low, high
		widen(&row[column].X)
	}
}

// panel returns a panel with a line for each run that has the name.
func panel(name, axis string, runs []*Run, opts Options) (*plot.Plot, error) {
	if axis != "steps" && axis != "seconds" {
		return nil, fmt.Errorf("the axis is %q, want \"steps\" or \"seconds\"", axis)
	}
	p := plot.New()
	p.Y.Label.Text = strings.ReplaceAll(name, "_", " ")
	p.X.Label.Text = axis
	if opts.Log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.Add(plotter.NewGrid())
	drawn, rise := 0, 0.0
	for i, r := range runs {
		var points plotter.XYs
		for _, at := range r.Series[name] {
			x := at.Step
			if axis == "seconds" {
				x = at.Time
			}
			if isDrawable(x) && isDrawable(at.Number) && (!opts.Log || at.Number > smallest) {
				points = append(points, plotter.XY{X: x, Y: at.Number})
			}
		}
		if len(points) == 0 {
			continue
		}
		drawn++
		rise += points[len(points)-1].Y - points[0].Y
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		dots.Color, dots.Shape, dots.Radius = line.Color, draw.CircleGlyph{}, vg.Points(1.5)
		p.Add(line)
		if len(points) < 50 {
			p.Add(dots)
		}
		if len(runs) > 1 {
			p.Legend.Add(r.Name, line)
		}
	}
	if drawn == 0 {
		var have []string
		for _, r := range runs {
			for series := range r.Series {
				have = append(have, series)
			}
		}
		slices.Sort(have)
		return nil, fmt.Errorf("the files have no finite numbers named %q: want one of %q", name, slices.Compact(have))
	}
	// Falling curves leave the upper right corner free, and others the upper left one.
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, rise >= 0, vg.Centimeter/2, -vg.Centimeter/4
	if !p.Legend.Left {
		p.Legend.XOffs *= -1
	}
	if !opts.Log {
		widen(&p.Y)
	} else if p.Y.Min == p.Y.Max { // otherwise the logarithmic axis would reach below 0
		p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*2
	}
	return p, nil
}

// Plotted numbers have at most the magnitude largest, and on a logarithmic axis are above smallest, so that their
// differences and ratios are finite.
const largest, smallest = 1e300, 1e-300

func isDrawable(x float64) bool { return math.Abs(x) <= largest }

// widen widens a range that is too narrow for ticks.
func widen(a *plot.Axis) {
	if least := 1e-9 * max(math.Abs(a.Min), math.Abs(a.Max)); a.Max-a.Min <= max(least, smallest) {
		a.Min, a.Max = a.Min-max(least, 1), a.Max+max(least, 1)
	}
}
