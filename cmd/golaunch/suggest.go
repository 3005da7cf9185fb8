package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// maxSuggested is how many flags are suggested at most: more are no help.
const maxSuggested = 3

// suggest adds to the error for an unknown flag the known ones that may be meant: those
// it is the beginning of, else those that a slip or two turn into it. A word behind a
// single dash is taken for a flag too: -np.
func (o *options) suggest(err *pflag.NotExistError) error {
	name, _, _ := strings.Cut(cmp.Or(err.GetSpecifiedShortnames(), err.GetSpecifiedName()), "=")
	name = strings.ReplaceAll(name, "_", "-")
	var begun, close []string
	for _, g := range o.groups {
		g.VisitAll(func(f *pflag.Flag) {
			switch {
			case strings.HasPrefix(f.Name, name):
				begun = append(begun, "--"+f.Name)
			case slips(name, f.Name) <= min(2, len(name)/2):
				close = append(close, "--"+f.Name)
			}
		})
	}
	meant := begun
	if len(meant) == 0 {
		meant = close
	}
	if len(meant) == 0 || len(meant) > maxSuggested {
		return err
	}
	return fmt.Errorf("%w; did you mean %s?", err, strings.Join(meant, " or "))
}

// slips is how many letters have to be changed, added or left out to turn a into b.
func slips(a, b string) int {
	row := make([]int, len(b)+1) // from what a begins with to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
