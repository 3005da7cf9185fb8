package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// String returns the report as text: a line for each rank, and the longest gaps of all ranks.
func (r *Report) String() string {
	var text strings.Builder
	fmt.Fprint(&text, "Times in milliseconds, and as a part of the total:\n")
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "rank\tactivities\ttotal\tcompute\tcommunication\texposed\tcopies\tidle\thidden\tby spans\t\n")
	type rankGap struct {
		rank int
		Gap
	}
	var gaps []rankGap
	var fromSpans []string
	for _, k := range r.Ranks {
		part := func(d time.Duration) string {
			return fmt.Sprintf("%s %4.1f%%", milliseconds(d), percent(d, max(k.Total, 1)))
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", k.Rank, k.Activities, milliseconds(k.Total),
			part(k.Compute), part(k.Communication), part(k.Exposed), part(k.Copies), part(k.Idle),
			hidden(k.Communication, k.HiddenPercent), hidden(k.SpansCommunication, k.SpansHiddenPercent))
		for _, g := range k.Gaps {
			gaps = append(gaps, rankGap{k.Rank, g})
		}
		if k.FromSpans {
			fromSpans = append(fromSpans, fmt.Sprint(k.Rank))
		}
	}
	w.Flush()
	if len(fromSpans) > 0 {
		fmt.Fprintf(&text, "The trace has no kernels of rank %s, so the times are those of spans: of passes as a whole.\n", strings.Join(fromSpans, ", "))
	}
	slices.SortStableFunc(gaps, func(a, b rankGap) int { return cmp.Compare(b.Took, a.Took) })
	if len(gaps) == 0 {
		return text.String()
	}
	fmt.Fprint(&text, "\nThe longest gaps:\n")
	for _, g := range gaps[:min(len(gaps), mostGaps)] {
		fmt.Fprintf(&text, "  rank %d, %s ms after its first activity: %s ms\n    between %s and %s", g.rank, milliseconds(g.At), milliseconds(g.Took), brief(g.Before), brief(g.After))
		if g.During != "" {
			fmt.Fprintf(&text, ", in %s", g.During)
		}
		if g.Cause != "" {
			fmt.Fprintf(&text, "\n    %s", g.Cause)
		}
		fmt.Fprintln(&text)
	}
	return text.String()
}

// KernelTable returns, for each rank, one line per name of the rank's activities. For a rank without activities, the
// table says so.
func (r *Report) KernelTable() string {
	var text strings.Builder
	for _, k := range r.Ranks {
		var all time.Duration
		for _, kernel := range k.Kernels {
			all += kernel.Took
		}
		if len(k.Kernels) == 0 {
			fmt.Fprintf(&text, "\nRank %d: its trace has no activities of a GPU.\n", k.Rank)
			continue
		}
		fmt.Fprintf(&text, "\nRank %d, all activities by name, in milliseconds:\n", k.Rank)
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(w, "took\t\tcount\teach\t  name\n")
		for _, kernel := range k.Kernels {
			fmt.Fprintf(w, "%s\t%.1f%%\t%d\t%s\t  %s\n", milliseconds(kernel.Took), percent(kernel.Took, all), kernel.Count,
				milliseconds(kernel.Took/time.Duration(kernel.Count)), kernel.Name)
		}
		w.Flush()
	}
	return text.String()
}

// hidden returns a percentage of some communication, or a dash if there was none.
func hidden(comm time.Duration, percent float64) string {
	if comm == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", percent)
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
