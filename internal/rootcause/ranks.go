package rootcause

import (
	"fmt"
	"slices"
	"strings"
)

// mostRanges is the largest number of ranks and ranges in a list.
const mostRanges = 16

// Ranks returns "rank 2", or "ranks 0-2, 5" in ascending order. There is at least one rank. A long list ends with the
// number of ranks that it leaves out: "ranks 0, 2, 4 and 250 more".
func Ranks(ranks []int) string {
	ranks = slices.Sorted(slices.Values(ranks))
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	var parts []string
	more := ""
	for i := 0; i < len(ranks); {
		if len(parts) == mostRanges {
			more = fmt.Sprintf(" and %d more", len(ranks)-i)
			break
		}
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if j-i < 2 { // two neighbours are not written as a range
			j = i
			parts = append(parts, fmt.Sprint(ranks[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	return "ranks " + strings.Join(parts, ", ") + more
}
