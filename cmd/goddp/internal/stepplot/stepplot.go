// Package stepplot draws a training step as its ranks spent it.
package stepplot

import (
	"errors"
	"fmt"
	"image/color"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/goddp/goddp/internal/picture"
	"github.com/goddp/goddp/internal/timeline"
)

// mostRanks is how many ranks a picture has.
const mostRanks = 8

// A kind is what happens in a box of the picture.
type kind struct {
	colour  color.RGBA
	meaning string
}

var (
	computes     = kind{color.RGBA{R: 0x3f, G: 0x7c, B: 0xb8, A: 0xff}, "computes"}
	communicates = kind{color.RGBA{R: 0xd5, G: 0x7a, B: 0x20, A: 0xff}, "exchanges data with the other ranks"}
	waits        = kind{color.RGBA{R: 0xb8, G: 0x3c, B: 0x40, A: 0xff}, "waits for it"}
	textColour   = color.Gray{Y: 0x22}
)

// The heights of the parts of a rank in the picture, from the top: a caption, the computation, the communication, and
// space below them. They are in units of the vertical axis.
const (
	caption       = 0.9
	compute       = 1.2
	communication = 0.9
	below         = 0.4
	ofRank        = caption + compute + communication + below
)

// Save draws a step into a file whose name ends with .svg, .png or .pdf. Of many ranks it draws the first, and the straggler
// if there is one.
func Save(path string, ranks []timeline.Row, straggler *timeline.Straggler) error {
	if !slices.ContainsFunc(ranks, func(r timeline.Row) bool { return len(r.Compute)+len(r.Communication) > 0 }) {
		return errors.New("the step has no span to draw")
	}
	title := fmt.Sprintf("One training step of %d ranks", len(ranks))
	switch n := len(ranks); {
	case n == 1:
		title = fmt.Sprintf("One training step of rank %d", ranks[0].Rank)
	case n > mostRanks:
		isStraggler := func(r timeline.Row) bool { return straggler != nil && r.Rank == straggler.Rank }
		last := max(mostRanks-1, slices.IndexFunc(ranks, isStraggler))
		ranks = append(slices.Clone(ranks[:mostRanks-1]), ranks[last])
		var drawn []string
		for _, r := range ranks {
			drawn = append(drawn, fmt.Sprint(r.Rank))
		}
		title += ", of which " + strings.Join(drawn, ", ") + " are drawn"
	}
	p := picture.New()
	p.HideY()
	p.Title.Text = title
	p.X.Label.Text = "milliseconds"
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, ofRank*float64(len(ranks))
	top, kinds := p.Y.Max, []kind{computes, communicates}
	for _, r := range ranks {
		p.Add(label{fmt.Sprintf("rank %d", r.Rank), top - caption/2})
		for _, s := range coalesced(r.Compute) {
			k := computes
			if s.IsWait {
				k = waits
				if !slices.Contains(kinds, k) {
					kinds = append(kinds, k)
				}
			}
			p.Add(box{s, k, top - caption - compute, compute})
		}
		for _, s := range coalesced(r.Communication) {
			p.Add(box{s, communicates, top - caption - compute - communication, communication})
		}
		for _, s := range append(r.Compute, r.Communication...) {
			p.X.Max = max(p.X.Max, milliseconds(s.End))
		}
		top -= ofRank
	}
	height := vg.Length(p.Y.Max)*vg.Points(15) + vg.Points(80)
	var legend picture.Legend
	for _, k := range kinds {
		legend = append(legend, picture.Entry{Text: k.meaning, Line: draw.LineStyle{Color: k.colour, Width: vg.Points(9)}, Length: vg.Points(9)})
	}
	return picture.Save(path, picture.Width, height, legend, p.Draw)
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// coalesced joins kernels that a picture cannot show apart.
func coalesced(spans []timeline.Span) (out []timeline.Span) {
	const apart = 1500 // how many kernels a picture can show beside each other
	for _, s := range spans {
		if n := len(out); n > 0 && s.IsKernel && s.Begin-out[n-1].End < spans[len(spans)-1].End/apart {
			out[n-1].End = max(out[n-1].End, s.End)
			continue
		}
		out = append(out, s)
	}
	return out
}

// A box is a span in the picture, with its name if there is room for it.
type box struct {
	timeline.Span
	kind           kind
	bottom, height float64
}

// Plot implements [plot.Plotter].
func (b box) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	left, right, bottom, top := x(milliseconds(b.Begin)), x(milliseconds(b.End)), y(b.bottom), y(b.bottom+b.height*0.92)
	c.FillPolygon(b.kind.colour, []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}})
	if b.IsKernel || b.IsWait {
		return
	}
	c.StrokeLine2(draw.LineStyle{Color: color.White, Width: vg.Points(0.5)}, right, bottom, right, top)
	style := picture.TextStyle(p, color.White)
	style.XAlign = draw.XCenter
	_, bucket, _ := strings.Cut(b.Name, " ") // of "AllReduce bucket 3"
	for _, name := range []string{bucket, b.Name, strings.TrimPrefix(bucket, "bucket ")} {
		if name != "" && style.Width(name)+vg.Points(2) <= right-left {
			c.FillText(style, vg.Point{X: (left + right) / 2, Y: (bottom + top) / 2}, name)
			return
		}
	}
}

// A label is text at the left edge.
type label struct {
	text string
	at   float64
}

// Plot implements [plot.Plotter].
func (l label) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	c.FillText(picture.TextStyle(p, textColour), vg.Point{X: c.Min.X, Y: y(l.at)}, l.text)
}
