package optim

import (
	"testing"

	"github.com/goddp/goddp/internal/kernels"
)

// The parameters of a group that share the numbers of an update get the same as one that does not.
func TestNumbersOfReplays(t *testing.T) {
	step := kernels.AdamWStep{LR: 0.1, Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.2, LossScale: 1, Step: 1}
	var shared adamNumbers
	for what, change := range map[string]func(){
		"the same":               func() {},
		"the next step":          func() { step.Step++ },
		"a rate":                 func() { step.LR = 0.3 },
		"the first beta":         func() { step.Beta1 = 0.5 },
		"the second beta":        func() { step.Beta2 = 0.9 },
		"a weight decay":         func() { step.WeightDecay = 0.1 },
		"a coupled weight decay": func() { step.Coupled = true },
		"a scaled loss":          func() { step.LossScale = 8 },
	} {
		change()
		if got, want := shared.numbers(&step), step.Numbers(); [5]float64(got) != want {
			t.Errorf("%s: the numbers are %v, want %v", what, got, want)
		}
	}
}
