package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Comparison compares a report of a program before a change with one after it.
type Comparison struct {
	Before *Report `json:"before"`
	After  *Report `json:"after"`
	// Kernels are the kernels of both reports. Those whose times differ most come first.
	Kernels []Change `json:"kernels"`
}

// Change has the times of one kernel before and after: see Took of [Kernel]. A time is 0 if the report lacks the kernel.
type Change struct {
	Name   string        `json:"name"`
	Before time.Duration `json:"before_ns"`
	After  time.Duration `json:"after_ns"`
}

// Compare compares two reports. The times of steps cannot be compared with those of a whole trace: that is an error.
func Compare(before, after *Report) (*Comparison, error) {
	if (before.Ranks[0].Steps == 0) != (after.Ranks[0].Steps == 0) {
		return nil, fmt.Errorf("before: %s; after: %s: want whole steps in both or in none", before.scope(), after.scope())
	}
	c := &Comparison{Before: before, After: after, Kernels: []Change{}}
	for _, k := range before.Kernels {
		c.Kernels = append(c.Kernels, Change{k.Name, k.Took, 0})
	}
	for _, k := range after.Kernels {
		i := slices.IndexFunc(c.Kernels, func(have Change) bool { return have.Name == k.Name })
		if i < 0 {
			i, c.Kernels = len(c.Kernels), append(c.Kernels, Change{Name: k.Name})
		}
		c.Kernels[i].After = k.Took
	}
	slices.SortStableFunc(c.Kernels, func(a, b Change) int {
		return cmp.Compare((b.After - b.Before).Abs(), (a.After - a.Before).Abs())
	})
	return c, nil
}

// Text returns the comparison as text. It has all kernels or those that have changed the most.
func (c *Comparison) Text(allKernels bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Before: %s; after: %s. Times in milliseconds%s, as a mean of the ranks:\n", c.Before.scope(), c.After.scope(), c.After.perStep())
	w := newTable(&text)
	fmt.Fprint(w, "before\tafter\tchange\t\t\n")
	line := func(before, after time.Duration, name string) {
		part := "new"
		if before > 0 {
			part = fmt.Sprintf("%+.1f%%", 100*(float64(after)/float64(before)-1))
		} else if after == 0 {
			part = ""
		}
		fmt.Fprintf(w, "%s\t%s\t%+.3f\t%s\t  %s\n", milliseconds(before), milliseconds(after), float64(after-before)/1e6, part, name)
	}
	b, a := c.Before.Mean, c.After.Mean
	line(b.Total, a.Total, "time")
	line(b.Compute, a.Compute, "compute")
	line(b.Exposed, a.Exposed, "exposed communication")
	line(b.Copies, a.Copies, "copies")
	line(b.Idle, a.Idle, "idle")
	line(b.Communication, a.Communication, "communication, hidden or exposed")
	line(b.Waiting, a.Waiting, "of it waiting for the last rank")
	w.Flush()

	shown := c.Kernels
	if !allKernels {
		shown = shown[:min(len(shown), mostKernels)]
	}
	fmt.Fprint(&text, "\nWhat has changed the most:\n")
	w = newTable(&text)
	fmt.Fprint(w, "before\tafter\tchange\t\t  name\n")
	for _, k := range shown {
		line(k.Before, k.After, k.Name)
	}
	w.Flush()
	return text.String()
}
