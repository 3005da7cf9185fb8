package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// verdict is the judge's opinion of a scenario. Each finding is a short sentence; if it has
// details, they follow ": ".
type verdict struct {
	wrong      []string      // findings about the outcome, the exit codes and the deadline
	unnamed    []string      // findings about errors and reports that do not name the culprit
	unread     []string      // findings about what `goddp analyze` reads in the flight records
	hasCulprit bool          // the ranks' errors or golaunch's report must name the victim
	hasRecords bool          // the flight records must name the victim
	skipped    string        // why the scenario could not run; "" if it ran
	toError    time.Duration // from the deadline, or from a fault noticed without one, to the last rank's error
	toEnd      time.Duration // from the fault to the end of the last process
	isHung     bool          // a process did not end by itself
	hasOrphans bool          // a process outlived the program that started it
}

func (v *verdict) wrongf(format string, args ...any) {
	v.wrong = append(v.wrong, fmt.Sprintf(format, args...))
}

func (v *verdict) unnamedf(format string, args ...any) {
	v.unnamed = append(v.unnamed, fmt.Sprintf(format, args...))
}

func (v *verdict) unreadf(format string, args ...any) {
	v.unread = append(v.unread, fmt.Sprintf(format, args...))
}

func (v *verdict) findings() []string { return slices.Concat(v.wrong, v.unnamed, v.unread) }

func (v *verdict) ok() bool { return len(v.findings()) == 0 }

// String returns all findings.
func (v *verdict) String() string { return strings.Join(v.findings(), "; ") }

// shorten removes the scenario's folder from the paths in all findings.
func (v *verdict) shorten(dir string) {
	for _, texts := range [][]string{v.wrong, v.unnamed, v.unread} {
		for i, text := range texts {
			texts[i] = strings.ReplaceAll(text, dir+"/", "")
		}
	}
}

// first returns the first finding without its details, for a cell of a table. The scenario must
// have failed.
func (v *verdict) first() string {
	text, _, _ := strings.Cut(v.findings()[0], ": ")
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
}

// tableHead is the head of the campaign's table.
const tableHead = `| fault | mode | scenarios | right outcome | culprit named | by the records too | hung or orphaned | to the error, at worst | to the end, at worst |
|---|---|---|---|---|---|---|---|---|
`

// table returns the campaign's table: a row for each fault in each mode, and one for all.
func table(results []result) string {
	var b strings.Builder
	b.WriteString(tableHead)
	var total tally
	for _, c := range cells {
		var t tally
		for _, r := range results {
			if r.Fault == c.Fault && r.Mode == c.Mode {
				t.add(&r.verdict)
				total.add(&r.verdict)
			}
		}
		if t.scenarios+t.skipped > 0 {
			fmt.Fprintf(&b, "| %s | %s | %v |\n", c.Fault, c.Mode, &t)
		}
	}
	fmt.Fprintf(&b, "| all | | %v |\n", &total)
	return b.String()
}

// tally counts verdicts.
type tally struct {
	scenarios, skipped int
	right, stuck       int           // outcomes as promised; scenarios that hung or left orphans
	culprits, named    int           // scenarios with a culprit; those that named it
	records, read      int           // scenarios whose records must name it; those whose records did
	toError, toEnd     time.Duration // the worst
}

func (t *tally) add(v *verdict) {
	if v.skipped != "" {
		t.skipped++
		return
	}
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	t.scenarios++
	count(&t.right, len(v.wrong) == 0)
	count(&t.culprits, v.hasCulprit)
	count(&t.named, v.hasCulprit && len(v.unnamed) == 0)
	count(&t.records, v.hasRecords)
	count(&t.read, v.hasRecords && len(v.unread) == 0)
	count(&t.stuck, v.isHung || v.hasOrphans)
	t.toError, t.toEnd = max(t.toError, v.toError), max(t.toEnd, v.toEnd)
}

// String returns the tally as cells of the table.
func (t *tally) String() string {
	if t.scenarios == 0 {
		return "skipped | | | | | | "
	}
	share := func(n, of int) string {
		if of == 0 {
			return "–"
		}
		return fmt.Sprintf("%d of %d", n, of)
	}
	toError := "–"
	if t.toError > 0 {
		toError = fmt.Sprintf("%.2f s", t.toError.Seconds())
	}
	return fmt.Sprintf("%d | %d | %s | %s | %d | %s | %.2f s",
		t.scenarios, t.right, share(t.named, t.culprits), share(t.read, t.records), t.stuck, toError, t.toEnd.Seconds())
}
