package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/terminal"
)

// bar is a line on a terminal, which is redrawn in place.
type bar struct {
	out           io.Writer
	columns       int      // the greatest number of characters of the line
	before, after string   // what makes the terminal redraw the line
	values        []string // what was logged last, as describe returns it

	isDrawn    bool
	width      int // the width of the line that is there; 0: none
	drawnAt    time.Time
	drawnSteps int
	rate       float64 // steps a second, smoothed; 0: unknown
}

const (
	// redrawAfter is the least time between two drawings of the bar because of steps.
	redrawAfter = 100 * time.Millisecond
	// smoothing is the weight of the newest rate, as in tqdm.
	smoothing = 0.3
)

// newBar returns the bar for an output, or nil if lines cannot be redrawn there.
func newBar(out io.Writer, first int, now time.Time) *bar {
	f, ok := out.(*os.File)
	if !ok {
		return nil
	}
	b := &bar{out: out, before: "\r", columns: terminal.Columns(f) - 1, drawnAt: now, drawnSteps: first}
	if columns := jobenv.ColumnsOf(f); columns > 0 {
		// golaunch puts its prefix before the line. It shows a line when it knows that no "\n" follows the "\r".
		b.columns, b.before, b.after = columns, "", "\r\r"
	}
	if b.columns <= 0 {
		return nil
	}
	return b
}

// step redraws the bar after a step, unless it was drawn a moment ago.
func (b *bar) step(now time.Time, steps, of int) {
	if now.Sub(b.drawnAt) >= redrawAfter {
		b.draw(now, steps, of)
	}
}

// draw draws the bar.
func (b *bar) draw(now time.Time, steps, of int) {
	if took := now.Sub(b.drawnAt); took > 0 && steps > b.drawnSteps {
		rate := float64(steps-b.drawnSteps) / took.Seconds()
		if b.rate > 0 {
			rate = smoothing*rate + (1-smoothing)*b.rate
		}
		b.rate, b.drawnAt, b.drawnSteps = rate, now, steps
	}
	line := b.line(steps, of)
	fmt.Fprintf(b.out, "%s%-*s%s", b.before, b.width, line, b.after)
	b.width, b.isDrawn = len(line), true
}

// line returns the line: the bar, and as many of the numbers as there is room for.
func (b *bar) line(steps, of int) string {
	var items []string
	if b.rate > 0 {
		items = append(items, rate(b.rate, "steps"))
		if steps < of {
			items = append(items, left(time.Duration(float64(of-steps)/b.rate*float64(time.Second))))
		}
	}
	line := fmt.Sprintf("step %d", steps)
	if of > 0 {
		cells := min(b.columns/8, 20)
		done := min(steps*cells/of, cells)
		line = fmt.Sprintf("%3d%% [%s%s] %d/%d", steps*100/of, strings.Repeat("=", done), strings.Repeat(" ", cells-done), steps, of)
	}
	for _, item := range append(items, b.values...) {
		if len(line)+2+len(item) <= b.columns {
			line += "  " + item
		}
	}
	return line[:min(len(line), b.columns)]
}

// note writes a line that stays above the bar. The time since the bar was drawn does not count for its rate.
func (b *bar) note(now time.Time, steps int, line string) {
	b.keep(line)
	b.drawnAt, b.drawnSteps = now, steps
}

// keep writes a line that stays, in the place of the bar.
func (b *bar) keep(line string) {
	fmt.Fprintf(b.out, "%s%-*s\n", b.before, b.width, line)
	b.width = 0
}

// end draws the bar for the last time, if it was drawn before. Nothing is left of a run that has ended early.
func (b *bar) end(steps, of int) {
	if b.isDrawn {
		b.rate = 0
		b.keep(b.line(steps, of))
	}
}
