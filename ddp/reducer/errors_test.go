package reducer_test

import (
	"testing"

	"github.com/goddp/goddp/ddp/reducer"
)

// Neighboring ranks that lack the same gradients for the same reason are named together.
func TestMissingGradientsOfSeveralRanks(t *testing.T) {
	head := []string{"head.bias", "head.weight"}
	err := &reducer.MissingGradientError{Missing: []reducer.Missing{
		{Rank: 0, Params: head}, {Rank: 1, Params: head}, {Rank: 2, Params: head}, {Rank: 4, Params: head[:1]}, {Rank: 5, Params: head[:1], Cause: "no luck"},
	}}
	const want = `no gradient in this backward pass for parameters ["head.bias" "head.weight"] on ranks 0-2; for parameter "head.bias" on rank 4; ` +
		`for parameter "head.bias" on rank 5, whose pass failed: no luck: the step is skipped on every rank ` +
		`(was a parameter not used in the loss? FindUnusedParameters allows that)`
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
