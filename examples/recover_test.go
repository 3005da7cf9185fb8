package examples

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hashes returns the digests of the parameters, by rank.
func hashes(out string) map[string]string {
	sums := map[string]string{}
	for _, m := range hashLine.FindAllStringSubmatch(out, -1) {
		sums[m[1]] = m[2]
	}
	return sums
}

// TestRecoverAfterStall has a rank that sleeps past the others' timeout. All ranks go on in the same
// processes from the last committed step, and end with the parameters of a run without the stall.
func TestRecoverAfterStall(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			t.Parallel()
			const steps, stall = 12, 5
			args := []string{"--steps", fmt.Sprint(steps), "--timeout", "3s", "--log", "run.jsonl"}
			plainDir, stalledDir := t.TempDir(), t.TempDir()
			plain := launch(t, plainDir, ranks, "recover", args...)
			stalled := launch(t, stalledDir, ranks, "recover", append(args, "--stall-rank", "1", "--stall-step", fmt.Sprint(stall))...)
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
				for _, line := range []string{fmt.Sprintf("rank %d: starts at step 0\n", r), fmt.Sprintf("rank %d: group 1 broke: ", r), fmt.Sprintf("rank %d: starts at step %d\n", r, stall)} {
					if strings.Count(stalled, line) != 1 {
						t.Errorf("the output does not contain %q once:\n%s", line, stalled)
					}
				}
			}
			losses := outcome(t, plainDir)
			if len(losses) != steps {
				t.Errorf("%d losses, want %d", len(losses), steps)
			}
			compareOutcomes(t, outcome(t, stalledDir), losses)
			if strings.Contains(plain, "broke") {
				t.Errorf("the plain run broke:\n%s", plain)
			}
		})
	}
}

// TestRecoverFromACheckpoint kills a rank. golaunch starts all ranks again, none of which has the state.
// They go on from the latest checkpoint, and end with the parameters of a run without the failure.
func TestRecoverFromACheckpoint(t *testing.T) {
	args := []string{filepath.Join(bin, "recover"), "--steps", "1000", "--save-every", "50", "--resume", "run", "--log", "run.jsonl"}
	unbrokenDir, dir := t.TempDir(), t.TempDir()
	want := launched(t, unbrokenDir, args...)
	got := launched(t, dir, append([]string{"--max-restarts", "1", killer(t)}, args...)...)
	if !maps.Equal(hashes(got), hashes(want)) || len(hashes(want)) != 2 {
		t.Errorf("parameters by rank: %v, want %v", hashes(got), hashes(want))
	}
	compareOutcomes(t, outcome(t, dir), outcome(t, unbrokenDir))
	if start := regexp.MustCompile(`rank 1: starts at step [1-9]\d*\n`); !start.MatchString(got) {
		t.Errorf("rank 1 did not start after a checkpoint:\n%s", got)
	}
}
