package schedule_test

import (
	"fmt"

	"github.com/goddp/goddp/optim/schedule"
)

// The rate rises for two steps and then follows a cosine.
func ExampleSequence() {
	rate := schedule.Sequence(
		schedule.Phase{Steps: 2, Schedule: schedule.Linear(0, 1, 2)},
		schedule.Phase{Schedule: schedule.Cosine(1, 0, 4)},
	)
	for step := range 7 {
		fmt.Printf("%.2f ", rate(step))
	}
	// Output: 0.00 0.50 1.00 0.85 0.50 0.15 0.00
}
