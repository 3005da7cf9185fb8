package examples

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// A rank that sleeps past the others' timeout: all go on in the same processes,
// from the last committed step, to where they come without it, bit for bit.
func TestRecover(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			t.Parallel()
			const steps, stall = 12, 5
			args := []string{"--steps", fmt.Sprint(steps), "--timeout", "3s"}
			plain := launch(t, t.TempDir(), ranks, "recover", args...)
			stalled := launch(t, t.TempDir(), ranks, "recover", append(args, "--stall-rank", "1", "--stall-step", fmt.Sprint(stall))...)
			hashes := func(out string) map[string]string {
				sums := map[string]string{}
				for _, m := range hashLine.FindAllStringSubmatch(out, -1) {
					sums[m[1]] = m[2]
				}
				return sums
			}
			want, got := hashes(plain), hashes(stalled)
			if len(want) != ranks || !maps.Equal(got, want) {
				t.Errorf("parameters by rank: %v, want %v\n%s", got, want, stalled)
			}
			for r, sum := range want {
				if sum != want["0"] {
					t.Errorf("rank %s's parameters differ from rank 0's\n%s", r, plain)
				}
			}
			for r := range ranks {
				for _, line := range []string{fmt.Sprintf("rank %d: begins at step 0\n", r), fmt.Sprintf("rank %d: group 1 broke: ", r), fmt.Sprintf("rank %d: begins at step %d\n", r, stall)} {
					if strings.Count(stalled, line) != 1 {
						t.Errorf("%q is not there once in\n%s", line, stalled)
					}
				}
			}
			if a, b := losses(t, stalled), losses(t, plain); fmt.Sprint(a) != fmt.Sprint(b) || len(b) != steps || b[steps-1] >= b[0] {
				t.Errorf("losses %v with a stall, %v without", a, b)
			}
			if strings.Contains(plain, "broke") {
				t.Errorf("the plain run broke:\n%s", plain)
			}
		})
	}
}
