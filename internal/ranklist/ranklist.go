// Package ranklist writes lists of ranks for people.
package ranklist

import (
	"fmt"
	"strings"
)

// most is the largest number of ranks and ranges that Format returns.
const most = 16

// Format returns "rank 2", or "ranks 0-2, 5". The ranks are in ascending order, and there is at least one. If there
// are very many, the text ends with their number: "ranks 0, 2, 4 and 250 more".
func Format(ranks []int) string {
	var parts []string
	more := ""
	for i := 0; i < len(ranks); {
		if len(parts) >= most {
			more = fmt.Sprintf(" and %d more", len(ranks)-i)
			break
		}
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, fmt.Sprint(ranks[i]))
		case 1:
			parts = append(parts, fmt.Sprint(ranks[i]), fmt.Sprint(ranks[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	if len(ranks) == 1 {
		return "rank " + parts[0]
	}
	return "ranks " + strings.Join(parts, ", ") + more
}
