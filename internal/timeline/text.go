package timeline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// mostKernels is how many kernels a text has, unless all are wanted.
const mostKernels = 10

// Text returns the report as text. It has all kernels or those that take the most.
func (r *Report) Text(allKernels bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, times in milliseconds%s:\n", r.scope(), r.perStep())
	w := newTable(&text)
	fmt.Fprint(w, "\ttime\tcompute\t\texposed\t\tcopies\t\tidle\t\t  communication\thidden\twaiting\t\n")
	line := func(name string, t Times) {
		fmt.Fprintf(w, "%s\t%s\t", name, milliseconds(t.Total))
		for _, d := range []time.Duration{t.Compute, t.Exposed, t.Copies, t.Idle} {
			fmt.Fprintf(w, "%s\t%.1f%%\t", milliseconds(d), percent(d, max(t.Total, 1)))
		}
		hidden := "-"
		if t.Communication > 0 {
			hidden = fmt.Sprintf("%.1f%%", percent(t.Communication-t.Exposed, t.Communication))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", milliseconds(t.Communication), hidden, milliseconds(t.Waiting))
	}
	var fromSpans []string
	for _, k := range r.Ranks {
		line(fmt.Sprintf("rank %d", k.Rank), k.Times)
		if k.FromSpans {
			fromSpans = append(fromSpans, fmt.Sprint(k.Rank))
		}
	}
	if len(r.Ranks) > 1 {
		line("mean", r.Mean)
	}
	w.Flush()
	if len(fromSpans) > 0 {
		ranks := "rank "
		if len(fromSpans) > 1 {
			ranks = "ranks "
		}
		fmt.Fprintf(&text, "The trace has no kernels of %s, so the times are those of spans: of passes as a whole.\n", ranks+strings.Join(fromSpans, ", "))
	}
	if late := r.Mean.HostLate; late > 0 {
		of := "the idle time of a step"
		if r.Ranks[0].Steps == 0 {
			of = "the idle time"
		}
		fmt.Fprintf(&text, "Of %s, %s ms are the host's: it enqueued the next activity late.\n", of, milliseconds(late))
	}
	for _, c := range r.Clocks {
		if c.Collectives == 0 {
			fmt.Fprintf(&text, "The clock of %s may differ: its ranks have no collectives with rank %d.\n", c.Host, r.Ranks[0].Rank)
			continue
		}
		fmt.Fprintf(&text, "The clock of %s was %s ms ahead of that of rank %d, by the ends of %d collectives; the times are put right.\n",
			c.Host, milliseconds(c.Ahead), r.Ranks[0].Rank, c.Collectives)
	}
	if s := r.Straggler; s != nil {
		fmt.Fprintf(&text, "\nRank %d is the straggler: it was the last in %d of %d collectives, and each other rank waited %s ms for it (%.1f%%).\n",
			s.Rank, s.Last, s.Collectives, milliseconds(s.Waited), percent(s.Waited, max(r.Mean.Total, 1)))
		if s.Part != "" {
			fmt.Fprintf(&text, "  %s: %s ms on rank %d, %s ms on the others (their median).\n", s.Part, milliseconds(s.Took), s.Rank, milliseconds(s.Others))
		}
	}
	r.writeKernels(&text, allKernels)
	r.writeGaps(&text)
	return text.String()
}

// scope says what the trace holds.
func (r *Report) scope() string {
	steps := count(r.Ranks[0].Steps, "step")
	if r.Ranks[0].Steps == 0 {
		steps = "no whole step"
	}
	return count(len(r.Ranks), "rank") + ", " + steps
}

// perStep says whether times are those of a step.
func (r *Report) perStep() string {
	if r.Ranks[0].Steps == 0 {
		return " of the whole trace"
	}
	return " of a step on average"
}

func (r *Report) writeKernels(text io.Writer, all bool) {
	shown := r.Kernels
	if !all {
		shown = shown[:min(len(shown), mostKernels)]
	}
	if len(shown) == 0 {
		return
	}
	what := "kernels"
	if r.Ranks[0].FromSpans {
		what = "spans"
	}
	of := "a step and rank"
	if r.Ranks[0].Steps == 0 {
		of = "a rank"
	}
	fmt.Fprintf(text, "\nThe %s that take the most, as a mean of %s:\n", what, of)
	w := newTable(text)
	fmt.Fprint(w, "took\t\tcount\teach\t  kind\t  name\n")
	for _, k := range shown {
		fmt.Fprintf(w, "%s\t%.1f%%\t%.4g\t%s\t  %s\t  %s\n", milliseconds(k.Took), percent(k.Took, max(r.Mean.Total, 1)), k.Count,
			milliseconds(time.Duration(float64(k.Took)/k.Count)), k.Kind, k.Name)
	}
	w.Flush()
	if n := len(r.Kernels) - len(shown); n > 0 {
		fmt.Fprintf(text, "%d more: --kernels prints all.\n", n)
	}
}

func (r *Report) writeGaps(text io.Writer) {
	type rankGap struct {
		rank int
		Gap
	}
	var gaps []rankGap
	for _, k := range r.Ranks {
		for _, g := range k.Gaps {
			gaps = append(gaps, rankGap{k.Rank, g})
		}
	}
	if len(gaps) == 0 {
		return
	}
	slices.SortStableFunc(gaps, func(a, b rankGap) int { return cmp.Compare(b.Took, a.Took) })
	fmt.Fprint(text, "\nThe longest gaps:\n")
	for _, g := range gaps[:min(len(gaps), mostGaps)] {
		fmt.Fprintf(text, "  rank %d, %s ms after its first step began: %s ms\n    between %s and %s", g.rank, milliseconds(g.At), milliseconds(g.Took), brief(g.Before), brief(g.After))
		if g.During != "" {
			fmt.Fprintf(text, ", in %s", g.During)
		}
		if g.Cause != "" {
			fmt.Fprintf(text, "\n    %s", g.Cause)
		}
		fmt.Fprintln(text)
	}
}

func newTable(out io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

// brief truncates long names, whose beginning is the most informative part.
func brief(name string) string {
	const most = 48
	if len(name) <= most {
		return name
	}
	return name[:most] + "..."
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.3f", float64(d)/1e6) }
