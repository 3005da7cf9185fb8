// Package curve draws the files that package progress writes.
package curve

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/goddp/goddp/internal/picture"
)

// Options selects the curves and the axes.
type Options struct {
	Names  []string // the names to draw; none means all names except those in held
	Axes   []string // the horizontal axes, a column of panels for each: Steps or Seconds; none means Steps
	Log    bool     // the vertical axes are logarithmic
	Beside bool     // each run has columns of its own
}

// The horizontal axes.
const (
	Steps   = "steps"
	Seconds = "seconds"
)

// held holds the names of the numbers that are drawn only if they are named: those that package progress records about
// the process, and the number of the epoch.
var held = []string{"heap_bytes", "goroutines", "device_bytes", "epoch"}

// otherData holds what names begin with that belong into the panel of the rest of the name: validation_loss into that of
// loss.
var otherData = []string{"validation", "val", "eval", "test"}

// subject returns what a number of this name measures, and on which data: "" for those of the training.
func subject(name string) (of, data string) {
	for _, data := range otherData {
		if of, ok := strings.CutPrefix(name, data+"_"); ok && of != "" {
			return of, data
		}
	}
	return strings.TrimPrefix(name, "train_"), ""
}

// titles holds the titles of panels whose names would not explain themselves.
var titles = map[string]string{"lr": "learning rate", "grad_norm": "norm of the gradients", "mfu": "part of the GPU's peak (MFU)"}

const (
	panelHeight = 6 * vg.Centimeter
	lineWidth   = 1.5 * vg.Length(1)
)

// Save draws runs into a file whose name ends with .svg, .png or .pdf. The panels are below each other, that of the loss
// first. A panel has what is measured in training and in validation, with a line for each run.
func Save(path string, runs []*Run, opts Options) error {
	axes := opts.Axes
	if len(axes) == 0 {
		axes = []string{Steps}
	}
	subjects, err := chosen(path, runs, opts)
	if err != nil {
		return err
	}
	columns := [][]*Run{runs}
	if opts.Beside {
		columns = slices.Collect(slices.Chunk(runs, 1))
	}
	var panels [][]*plot.Plot
	for _, names := range subjects {
		var row []*plot.Plot
		for _, axis := range axes {
			for _, column := range columns {
				row = append(row, panel(names, axis, column, runs, opts))
			}
		}
		share(row, func(p *plot.Plot) *plot.Axis { return &p.Y }, opts.Log)
		panels = append(panels, row)
	}
	for i := range axes {
		var same []*plot.Plot
		for _, row := range panels {
			same = append(same, row[i*len(columns):(i+1)*len(columns)]...)
		}
		share(same, func(p *plot.Plot) *plot.Axis { return &p.X }, false)
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: len(panels[0]), PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2}
	return picture.Save(path, picture.Width*vg.Length(tiles.Cols), panelHeight*vg.Length(tiles.Rows), legend(runs, subjects), func(c draw.Canvas) {
		for i, row := range plot.Align(panels, tiles, c) {
			for j, place := range row {
				panels[i][j].Draw(place)
			}
		}
	})
}

// chosen returns the names to draw, those of a panel together, in the order of the panels.
func chosen(path string, runs []*Run, opts Options) (subjects [][]string, err error) {
	numbers := "finite numbers"
	if opts.Log {
		numbers = "finite numbers above 0"
	}
	var have []string
	for _, r := range runs {
		for name, points := range r.Series {
			if slices.ContainsFunc(points, opts.isDrawable) {
				have = append(have, name)
			}
		}
	}
	slices.Sort(have)
	have = slices.Compact(have)
	for _, name := range opts.Names {
		if !slices.Contains(have, name) {
			return nil, fmt.Errorf("the files have no %s named %q: want one of %q", numbers, name, have)
		}
	}
	names := opts.Names
	if len(names) == 0 {
		names = slices.DeleteFunc(have, func(name string) bool { return slices.Contains(held, name) })
		slices.SortFunc(names, func(a, b string) int {
			ofA, dataA := subject(a)
			ofB, dataB := subject(b)
			return cmp.Or(cmp.Compare(place(ofA), place(ofB)), cmp.Compare(ofA, ofB), cmp.Compare(dataA, dataB))
		})
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: the runs record no %s except %q, which are drawn only if named", path, numbers, held)
	}
	at := map[string]int{}
	for _, name := range names {
		of, _ := subject(name)
		i, isKnown := at[of]
		if !isKnown {
			i = len(subjects)
			at[of], subjects = i, append(subjects, nil)
		}
		subjects[i] = append(subjects[i], name)
	}
	return subjects, nil
}

// place returns where a panel comes: the loss first, what says how well the model does before what says how fast.
func place(of string) int {
	switch {
	case of == "loss":
		return 0
	case strings.HasSuffix(of, "_per_second") || of == "mfu":
		return 3
	case of == "lr" || of == "grad_norm":
		return 2
	}
	return 1
}

// share gives panels the same axis.
func share(panels []*plot.Plot, axis func(p *plot.Plot) *plot.Axis, isLog bool) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, p := range panels {
		low, high = min(low, axis(p).Min), max(high, axis(p).Max)
	}
	for _, p := range panels {
		a := axis(p)
		a.Min, a.Max = low, high
		switch {
		case !isLog:
			widen(a)
		case low == high: // otherwise the logarithmic axis would reach below 0
			a.Min, a.Max = low/2, high*2
		}
	}
}

// panel returns a panel with a line for each run and name. The colour of a run is by its place in all.
func panel(names []string, axis string, runs, all []*Run, opts Options) *plot.Plot {
	p := picture.New()
	of, _ := subject(names[0])
	p.Title.Text = cmp.Or(titles[of], strings.ReplaceAll(of, "_", " "))
	unit := 1.0
	if bytes, isBytes := strings.CutSuffix(of, "_bytes"); isBytes {
		p.Title.Text, unit = strings.ReplaceAll(bytes, "_", " ")+" memory (MiB)", 1<<20
	}
	p.X.Label.Text = axis
	p.X.Tick.Marker = picture.Ticks{Whole: axis == Steps}
	if opts.Log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, picture.Ticks{Log: true}
	}
	p.Add(plotter.NewGrid())
	for _, r := range runs {
		for _, name := range names {
			var points plotter.XYs
			for _, at := range r.Series[name] {
				x := at.Step
				if axis == Seconds {
					x = at.Time
				}
				if opts.isDrawable(at) {
					points = append(points, plotter.XY{X: x, Y: at.Number / unit})
				}
			}
			if len(points) == 0 {
				continue
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil { // only for points that are not finite
				continue
			}
			line.Color, line.Width = picture.Colours[slices.Index(all, r)%len(picture.Colours)], lineWidth
			if len(names) > 1 {
				line.Dashes = dashes(name)
			}
			dots.Color, dots.Shape, dots.Radius = line.Color, draw.CircleGlyph{}, vg.Points(1.5)
			p.Add(line)
			if len(points) < 50 {
				p.Add(dots)
			}
		}
	}
	return p
}

// dashes returns the dashes of a line: those of other data than the training's are dashed.
func dashes(name string) []vg.Length {
	if _, data := subject(name); data == "" {
		return nil
	}
	return []vg.Length{vg.Points(4), vg.Points(2)}
}

// legend says which colour is which run's, and which data the lines are of, if there are several.
func legend(runs []*Run, subjects [][]string) (l picture.Legend) {
	if len(runs) > 1 {
		for i, r := range runs {
			l = append(l, entry(r.Name, draw.LineStyle{Color: picture.Colours[i%len(picture.Colours)]}))
		}
	}
	var data []string
	for _, names := range subjects {
		for _, name := range names {
			if _, d := subject(name); len(names) > 1 && !slices.Contains(data, d) {
				data = append(data, d)
				l = append(l, entry(cmp.Or(d, "training"), draw.LineStyle{Color: color.Gray{Y: 0x55}, Dashes: dashes(name)}))
			}
		}
	}
	return l
}

func entry(text string, line draw.LineStyle) picture.Entry {
	line.Width = lineWidth
	return picture.Entry{Text: text, Line: line, Length: vg.Points(20)}
}

// Plotted numbers have at most the magnitude largest, and on a logarithmic axis are above smallest, so that their
// differences and ratios are finite.
const largest, smallest = 1e300, 1e-300

func isFinite(x float64) bool { return math.Abs(x) <= largest }

func (o Options) isDrawable(p Point) bool {
	return isFinite(p.Number) && isFinite(p.Step) && isFinite(p.Time) && (!o.Log || p.Number > smallest)
}

// widen widens a range that is too narrow for ticks.
func widen(a *plot.Axis) {
	if least := 1e-9 * max(math.Abs(a.Min), math.Abs(a.Max)); a.Max-a.Min <= max(least, smallest) {
		a.Min, a.Max = a.Min-max(least, 1), a.Max+max(least, 1)
	}
}
