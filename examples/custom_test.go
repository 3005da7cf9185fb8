package examples

import (
	"regexp"
	"strconv"
	"testing"
)

// TestCustomLearns runs examples/custom, which checks its operation's gradient and then trains.
func TestCustomLearns(t *testing.T) {
	out := launch(t, t.TempDir(), 2, "custom")
	found := regexp.MustCompile(`step 300/300  loss (\S+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("no loss of step 300 in\n%s", out)
	}
	if loss, err := strconv.ParseFloat(found[1], 64); err != nil || loss > 0.1 {
		t.Errorf("the loss is %v (%v), want at most 0.1, in\n%s", loss, err, out)
	}
}
