package zero

import (
	"fmt"
	"strings"
	"testing"
)

// The plan of a tape gathers each bucket two moments before its use, but not before the operations that use the slot's
// previous parameters are enqueued. A tape is written as BUCKET/OPERATION for each moment, and -LAST
// if the last operation of the moment is another one; a plan as the buckets that are gathered at each moment. Bucket b has slot b mod 3.
func TestPlan(t *testing.T) {
	for _, c := range []struct{ why, tape, plan string }{
		{"a forward and a backward pass, whose first buckets are still there", "5/1 4/2 3/3 2/4 1/5 0/6 1/7 2/8 3/9 4/10", "[5 4 3] [2] [1] [0] [] [] [3] [4] [] []"},
		{"an operation uses two buckets: both must be enqueued", "5/1 4/1 3/2 2/3 1/4", "[5 4 3] [] [2 1] [] []"},
		{"the last operation of a moment uses the next bucket too", "5/1 4/2-3 3/3 2/4 1/5", "[5 4 3] [2] [] [1] []"},
		{"a bucket is used again later", "5/1 4/2 5/3 3/4 2/5", "[5 4] [3] [] [2] []"},
		{"no moment is free before the use", "3/1 0/2 3/3 0/4", "[3] [0] [3] [0]"},
	} {
		var tape tape
		for word := range strings.FieldsSeq(c.tape) {
			var m moment
			ops, last, isLong := strings.Cut(word, "-")
			if _, err := fmt.Sscanf(ops, "%d/%d", &m.bucket, &m.op); err != nil {
				t.Fatal(err)
			}
			if m.last = m.op; isLong {
				fmt.Sscan(last, &m.last)
			}
			tape = append(tape, m)
		}
		tape.plan(func(b int) int { return b % 3 })
		var got []string
		for _, m := range tape {
			got = append(got, fmt.Sprint(m.gathers))
		}
		if plan := strings.Join(got, " "); plan != c.plan {
			t.Errorf("%s: the plan of %s is %s, want %s", c.why, c.tape, plan, c.plan)
		}
	}
}
