// Command figures draws the two pictures of the README. One shows a training step and its reductions, from
// a trace. The other shows goddp's time divided by PyTorch's, from a table of workloads.
//
//	go run ./bench/figures -trace trace.json -o docs/figures/overlap.svg
//	go run ./bench/figures -ratios docs/figures/ratios.csv -o docs/figures/ratios.svg
//
// docs/figures/make.sh makes the trace and runs both commands.
package main

import (
	"errors"
	"flag"
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func main() {
	trace := flag.String("trace", "", "draw the step of median length of this Chrome trace, a `FILE` of rank 0")
	ratios := flag.String("ratios", "", "draw this table, a CSV `FILE` with the columns workload, machine, ratio, page")
	out := flag.String("o", "", "write the picture to this SVG `FILE`")
	flag.Parse()
	if err := save(*trace, *ratios, *out); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func save(trace, ratios, out string) error {
	if (trace == "") == (ratios == "") || out == "" {
		return errors.New("want -o, and either -trace or -ratios")
	}
	if trace != "" {
		spans, err := readTrace(trace)
		if err != nil {
			return err
		}
		p, err := overlap(spans)
		if err != nil {
			return fmt.Errorf("%s: %w", trace, err)
		}
		return p.Save(24*vg.Centimeter, 6*vg.Centimeter, out)
	}
	bars, err := readRatios(ratios)
	if err != nil {
		return err
	}
	return ratioPlot(bars).Save(24*vg.Centimeter, vg.Length(len(bars))*0.75*vg.Centimeter+2.5*vg.Centimeter, out)
}

// The colours of both pictures.
var (
	computeColour       = color.RGBA{R: 0x5b, G: 0x8f, B: 0xc7, A: 0xff}
	communicationColour = color.RGBA{R: 0xe0, G: 0x8a, B: 0x3c, A: 0xff}
	waitColour          = color.RGBA{R: 0xc4, G: 0x4e, B: 0x52, A: 0xff}
	lineColour          = color.Gray{Y: 0x55}
)

// newPlot returns a plot with a white background and without an axis on its left.
func newPlot() *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Padding = vg.Points(6)
	p.HideY()
	return p
}

// textStyle returns the style of text inside a picture.
func textStyle(p *plot.Plot, colour color.Color) draw.TextStyle {
	return draw.TextStyle{Font: font.From(plot.DefaultFont, 10), Handler: p.TextHandler, YAlign: draw.YCenter, Color: colour}
}

// width returns an upper bound of a text's width. A program that shows the SVG may use a wider font.
func width(style draw.TextStyle, text string) vg.Length { return 1.15 * style.Width(text) }
