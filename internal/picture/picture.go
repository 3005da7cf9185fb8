// Package picture gives the pictures that this module draws one look: that of [New] and [Ticks], in the files of [Save].
package picture

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/goddp/goddp/internal/files"
)

// Colours holds colours that most people with a colour vision deficiency can distinguish (Okabe and Ito, "Color Universal
// Design", 2008).
var Colours = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255},
}

// Width is the width of a picture. Its text is legible on a telephone, and it is no wider than a page of text.
const Width = 15 * vg.Centimeter

// New returns a plot with nice ticks and without a title.
func New() *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.BackgroundColor = nil // that of the picture
	p.Title.Padding = vg.Points(6)
	p.X.Tick.Marker, p.Y.Tick.Marker = Ticks{}, Ticks{}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size, axis.Tick.Label.Font.Size, axis.Tick.Length = 11, 11, vg.Points(4)
	}
	return p
}

// TextStyle returns the style of text inside a plot.
func TextStyle(p *plot.Plot, colour color.Color) draw.TextStyle {
	return draw.TextStyle{Font: font.From(plot.DefaultFont, 11), Handler: p.TextHandler, YAlign: draw.YCenter, Color: colour}
}

// style gives an SVG a background: white, or dark as that of GitHub's pages, with light text.
const style = "<style>svg {background: #fff} @media (prefers-color-scheme: dark) {svg {background: #0d1117} svg > g {filter: invert(0.93) hue-rotate(180deg)}}</style>"

// Save draws a picture, and below it a legend, into a file whose name ends with .svg, .png or .pdf. Nothing touches the edges.
// An SVG is dark where the reader prefers that.
func Save(path string, width, height vg.Length, legend Legend, paint func(c draw.Canvas)) error {
	const margin = vg.Centimeter / 3
	canvas, err := draw.NewFormattedCanvas(width, height+legend.Height(width-2*margin), strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil { // only for another format
		return fmt.Errorf("%s: want a name that ends with .svg, .png or .pdf", path)
	}
	c := draw.New(canvas)
	if filepath.Ext(path) != ".svg" {
		c.SetColor(color.White)
		c.Fill(c.Rectangle.Path())
	}
	paint(legend.Draw(draw.Crop(c, margin, -margin, margin, -margin)))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	content := text.Bytes()
	if filepath.Ext(path) == ".svg" {
		// Arial and Helvetica have the widths of Liberation Sans.
		content = bytes.ReplaceAll(content, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
		content = bytes.Replace(content, []byte("<g "), []byte(style+"\n<g "), 1)
	}
	return files.WriteBytes(path, 0o644, content)
}

// Ticks marks an axis at multiples of 1, 2 or 5 times a power of ten.
type Ticks struct {
	Log   bool // the axis is logarithmic
	Whole bool // between two whole numbers there is no mark
}

// Ticks implements [plot.Ticker].
func (t Ticks) Ticks(least, most float64) (ticks []plot.Tick) {
	if t.Log {
		return logTicks(least, most)
	}
	step := niceStep((most - least) / 5)
	if t.Whole {
		step = max(step, 1)
	}
	unit, suffix := 1.0, ""
	switch size := max(math.Abs(least), math.Abs(most)); {
	case size >= 1e15:
	case size >= 1e9:
		unit, suffix = 1e9, "G"
	case size >= 1e6:
		unit, suffix = 1e6, "M"
	case size >= 1e4:
		unit, suffix = 1e3, "k"
	}
	decimals := max(0, int(math.Ceil(-math.Log10(step/unit)-1e-9)))
	for i := math.Ceil(least/step - 1e-9); i*step <= most+1e-9*step && len(ticks) < 20; i++ {
		label := strconv.FormatFloat(i*step/unit, 'f', decimals, 64) + suffix
		if i == 0 {
			label = "0"
		} else if decimals > 4 && unit == 1 || math.Abs(i*step) >= 1e15 {
			label = short(i * step)
		}
		ticks = append(ticks, plot.Tick{Value: i * step, Label: label})
	}
	return ticks
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is not below x.
func niceStep(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= x*(1-1e-9) {
			return digit * power
		}
	}
	return 10 * power
}

func logTicks(least, most float64) (ticks []plot.Tick) {
	decades := math.Log10(most) - math.Log10(least)
	digits := []float64{1, 2, 5}
	if decades > 3 {
		digits = digits[:1]
	}
	stride := math.Ceil(decades / 8)
	for e := math.Floor(math.Log10(least)); e <= math.Log10(most); e += stride {
		for _, d := range digits {
			if v := d * math.Pow(10, e); v >= least*(1-1e-9) && v <= most*(1+1e-9) {
				ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
			}
		}
	}
	if len(ticks) < 2 { // such as between 2 and 5
		return Ticks{}.Ticks(least, most)
	}
	return ticks
}

// short writes a number with few characters, such as 0.001, 2e-5 or 1e20.
func short(x float64) string {
	text := strconv.FormatFloat(x, 'g', 6, 64)
	return strings.NewReplacer("e-0", "e-", "e+0", "e", "e+", "e").Replace(text)
}

// A Legend says what the lines or areas of a picture mean.
type Legend []Entry

// An Entry is a line of a style, with its meaning.
type Entry struct {
	Text   string
	Line   draw.LineStyle
	Length vg.Length
}

// The distances in a legend.
const (
	rowHeight vg.Length = 16
	beforeIt  vg.Length = 4  // between a line and its meaning
	apart     vg.Length = 14 // between two entries
)

// layout calls place with each entry's row and the begin of its line, in a picture of a width. It shortens a text that has no
// room in a row. It returns the number of rows.
func (l Legend) layout(style draw.TextStyle, width vg.Length, place func(e Entry, row int, x vg.Length)) (rows int) {
	x := vg.Length(0)
	for _, e := range l {
		e.Text = shortened(e.Text, style, width-e.Length-beforeIt)
		needs := e.Length + beforeIt + style.Width(e.Text)
		if x > 0 && x+needs > width {
			rows, x = rows+1, 0
		}
		place(e, rows, x)
		x += needs + apart
	}
	return rows + 1
}

// shortened leaves out the middle of a text that is wider than there is room.
func shortened(text string, style draw.TextStyle, room vg.Length) string {
	all := []rune(text)
	for n := len(all) - 1; n > 0 && style.Width(text) > room; n-- {
		text = string(all[:(n+1)/2]) + "…" + string(all[len(all)-n/2:])
	}
	return text
}

// Height returns the height of the legend.
func (l Legend) Height(width vg.Length) vg.Length {
	if len(l) == 0 {
		return 0
	}
	rows := l.layout(TextStyle(New(), color.Black), width, func(Entry, int, vg.Length) {})
	return vg.Length(rows)*rowHeight + rowHeight/2
}

// Draw draws the legend at the lower edge of a canvas. It returns the rest of the canvas.
func (l Legend) Draw(c draw.Canvas) (rest draw.Canvas) {
	style := TextStyle(New(), color.Black)
	height := l.Height(c.Max.X - c.Min.X)
	l.layout(style, c.Max.X-c.Min.X, func(e Entry, row int, x vg.Length) {
		at := vg.Point{X: c.Min.X + x, Y: c.Min.Y + height - rowHeight*(vg.Length(row)+1)}
		c.StrokeLine2(e.Line, at.X, at.Y, at.X+e.Length, at.Y)
		c.FillText(style, vg.Point{X: at.X + e.Length + beforeIt, Y: at.Y}, e.Text)
	})
	return draw.Crop(c, 0, 0, height, 0)
}
