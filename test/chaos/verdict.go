package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// verdict is what the judge has to say about a scenario.
type verdict struct {
	wrong   []string      // how its end was not the one promised
	unnamed []string      // where the culprit was not named
	unread  []string      // where the flight records, to goddp analyze, were not as clear
	accused bool          // there was a culprit to name
	read    bool          // and records that should tell it
	skipped string        // why the scenario could not be
	told    time.Duration // from the deadline, or from a fault that needs none, to the last rank's error
	took    time.Duration // from the fault to the end
	hung    bool          // something did not end by itself
	orphans bool          // something outlived those who started it
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

func (v *verdict) ok() bool { return len(v.wrong) == 0 && len(v.unnamed) == 0 && len(v.unread) == 0 }

// String is all that is wrong.
func (v *verdict) String() string {
	return strings.Join(slices.Concat(v.wrong, v.unnamed, v.unread), "; ")
}

// shorten leaves out of all texts where the scenario ran.
func (v *verdict) shorten(dir string) {
	for _, texts := range [][]string{v.wrong, v.unnamed, v.unread} {
		for i, text := range texts {
			texts[i] = strings.ReplaceAll(text, dir+"/", "")
		}
	}
}

// first is the first thing that is wrong, on one short line.
func (v *verdict) first() string {
	text := slices.Concat(v.wrong, v.unnamed, v.unread)[0]
	const most = 160
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
}

// table is the campaign's, a row for each fault in each mode.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| fault | mode | scenarios | right outcome | culprit named | by the records too | hung or orphaned | to the error, at worst | to the end, at worst |\n|---|---|---|---|---|---|---|---|---|\n")
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
	scenarios, skipped, right, stuck int
	accused, named, records, read    int
	told, took                       time.Duration
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
	count(&t.accused, v.accused)
	count(&t.named, v.accused && len(v.unnamed) == 0)
	count(&t.records, v.read)
	count(&t.read, v.read && len(v.unread) == 0)
	count(&t.stuck, v.hung || v.orphans)
	t.told, t.took = max(t.told, v.told), max(t.took, v.took)
}

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
	told := "–"
	if t.told > 0 {
		told = fmt.Sprintf("%.2f s", t.told.Seconds())
	}
	return fmt.Sprintf("%d | %d | %s | %s | %d | %s | %.2f s", t.scenarios, t.right, share(t.named, t.accused), share(t.read, t.records), t.stuck, told, t.took.Seconds())
}
