// Package schedule has learning rates that change as training goes on.
//
// A [Schedule] is a function of the number of steps that the optimizer has
// committed, and of nothing else: there is no state to save, a run that is
// resumed goes on with the right rate, and a step that was skipped does not
// count.
//
//	rate := schedule.Sequence(
//		schedule.Phase{Steps: 700, Schedule: schedule.Linear(0, 6e-4, 700)},
//		schedule.Phase{Schedule: schedule.Cosine(6e-4, 6e-5, 18000)},
//	)
//	for batch := range batches {
//		steps, _ := opt.Committed()
//		opt.SetLR(rate(steps))
//		... Forward, Backward, Step ...
//	}
//
// A group of parameters with a rate of its own is set in the same way:
// opt.Groups()[1].LR = 0.1 * rate(steps).
package schedule

import (
	"fmt"
	"math"
)

// A Schedule is the learning rate of the step that follows so many committed
// ones. The first step has the rate at 0.
type Schedule func(committed int) float64

// Constant is always rate.
func Constant(rate float64) Schedule {
	return func(int) float64 { return rate }
}

// Linear goes from one rate to another in so many steps, and stays there. From
// 0 upwards it is the usual warm-up.
func Linear(from, to float64, steps int) Schedule {
	positive("Linear", steps)
	return func(committed int) float64 {
		return from + (to-from)*progress(committed, steps)
	}
}

// Cosine goes from one rate to another on half a cosine wave in so many steps,
// and stays there (Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent
// with Warm Restarts", 2017, without the restarts).
func Cosine(from, to float64, steps int) Schedule {
	positive("Cosine", steps)
	return func(committed int) float64 {
		return between(from, to, progress(committed, steps))
	}
}

// Step is rate, multiplied by factor after every so many steps.
func Step(rate, factor float64, every int) Schedule {
	positive("Step", every)
	return func(committed int) float64 {
		return rate * math.Pow(factor, float64(committed/every))
	}
}

// OneCycle rises from peak/25 to peak on a cosine in the first 30% of the steps
// and falls to peak/250000 in the others (Smith and Topin, "Super-Convergence",
// 2018). It is torch.optim.lr_scheduler.OneCycleLR with its defaults.
func OneCycle(peak float64, steps int) Schedule {
	positive("OneCycle", steps)
	const start, end, rising = 25, 25e4, 0.3
	top := rising*float64(steps) - 1
	last := float64(steps) - 1
	return func(committed int) float64 {
		at := min(float64(committed), last)
		if at <= top {
			return between(peak/start, peak, at/top)
		}
		return between(peak, peak/end, (at-top)/(last-top))
	}
}

// WSD warms up linearly from 0 to peak, is stable, and decays linearly to 0 in
// the last steps (Hu et al., "MiniCPM", 2024). It panics if the parts are longer
// than the whole.
func WSD(peak float64, steps, warmUp, decay int) Schedule {
	if warmUp < 0 || decay < 0 || steps < warmUp+decay {
		panic(fmt.Sprintf("schedule: WSD of %d steps, %d of them to warm up and %d to decay", steps, warmUp, decay))
	}
	var phases []Phase
	if warmUp > 0 {
		phases = append(phases, Phase{Steps: warmUp, Schedule: Linear(0, peak, warmUp)})
	}
	phases = append(phases, Phase{Steps: steps - warmUp - decay, Schedule: Constant(peak)})
	if decay > 0 {
		phases = append(phases, Phase{Schedule: Linear(peak, 0, decay)})
	}
	return Sequence(phases...)
}

// A Phase is a part of a sequence. Its schedule counts from the phase's start.
type Phase struct {
	Steps    int // of the phase; the last phase has no end
	Schedule Schedule
}

// Sequence follows one phase after the other. It panics without a phase.
func Sequence(phases ...Phase) Schedule {
	if len(phases) == 0 {
		panic("schedule: Sequence of no phases")
	}
	return func(committed int) float64 {
		last := len(phases) - 1
		for _, p := range phases[:last] {
			if committed < p.Steps {
				return p.Schedule(committed)
			}
			committed -= p.Steps
		}
		return phases[last].Schedule(committed)
	}
}

// progress returns the fraction of steps that is committed, at most 1.
func progress(committed, steps int) float64 {
	return min(1, float64(committed)/float64(steps))
}

// between interpolates from one rate to another along half a cosine wave, for progress
// from 0 to 1.
func between(from, to, progress float64) float64 {
	return to + (from-to)*(1+math.Cos(math.Pi*progress))/2
}

func positive(name string, steps int) {
	if steps < 1 {
		panic(fmt.Sprintf("schedule: %s in %d steps, want at least 1", name, steps))
	}
}
