package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Level says how bad a finding is. It is the exit code of "goddp doctor".
type Level int

// The levels.
const (
	Good   Level = 0
	Slow   Level = 1 // a job works, and more slowly than the hardware could
	Broken Level = 2 // a job fails, or computes wrong numbers
)

func (l Level) String() string { return [...]string{"ok", "SLOW", "BROKEN"}[l] }

// MarshalText makes JSON hold the level's name, in lower case.
func (l Level) MarshalText() ([]byte, error) { return []byte(strings.ToLower(l.String())), nil }

// Finding is something that is wrong.
type Finding struct {
	Level Level  `json:"level"`
	What  string `json:"what"` // what is wrong and where, with both values
	Fix   string `json:"fix"`
}

// Result is the result of one check.
type Result struct {
	Check    string    `json:"check"` // its name, and its section in docs/doctor.md
	Level    Level     `json:"level"` // the level of the worst finding
	Good     string    `json:"good,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	Docs     string    `json:"docs"`
}

// Report is the result of all checks that apply.
type Report struct {
	Verdict Level    `json:"verdict"`
	Ranks   int      `json:"ranks"`
	Hosts   []string `json:"hosts"` // by their first ranks
	Results []Result `json:"results"`
}

// WriteText writes a report with one line for each check without findings. Findings have one line that
// says what is wrong, one with the fix, and one with the section of docs/doctor.md.
func (r Report) WriteText(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "goddp doctor: ranks: %d; hosts: %s\n\n", r.Ranks, strings.Join(r.Hosts, ", "))
	width := 0
	for _, result := range r.Results {
		width = max(width, len(result.Check))
	}
	slow, broken := 0, 0
	for _, result := range r.Results {
		if len(result.Findings) == 0 {
			fmt.Fprintf(&text, "%-6s  %-*s  %s\n", Good, width, result.Check, result.Good)
		}
		for _, f := range result.Findings {
			fmt.Fprintf(&text, "%-6s  %-*s  %s\n", f.Level, width, result.Check, f.What)
			fmt.Fprintf(&text, "%*sfix: %s\n%*ssee: %s\n", width+10, "", f.Fix, width+10, "", result.Docs)
			if f.Level == Slow {
				slow++
			} else {
				broken++
			}
		}
	}
	if r.Verdict == Good {
		text.WriteString("\nnothing is wrong\n")
	} else {
		fmt.Fprintf(&text, "\n%d broken, %d slow\n", broken, slow)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
