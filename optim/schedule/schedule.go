// Package schedule provides learning rate schedules.
//
// A [Schedule] is a function of the number of steps that the optimizer has committed. It has no other state, so
// nothing must be saved, a resumed run continues with the right rate, and a skipped step does not count.
//
//	rate := schedule.Sequence(
//		schedule.Phase{Steps: 700, Schedule: schedule.WarmUp(6e-4, 700)},
//		schedule.Phase{Schedule: schedule.Cosine(6e-4, 6e-5, 18000)},
//	)
//	for batch := range batches {
//		steps, _ := opt.Committed()
//		opt.SetLR(rate(steps))
//		... Forward, Backward, Step ...
//	}
//
// A parameter group can have another rate: opt.Groups()[1].LR = 0.1 * rate(steps).
//
// docs/migrate.md expresses the schedules of PyTorch and Hugging Face with these.
//
// The functions of this package panic if an argument, such as a number of steps, is out of range.
package schedule

import (
	"fmt"
	"math"
)

// A Schedule returns the learning rate for the next step, given the number of committed steps: 0 for the first
// step.
type Schedule func(committed int) float64

// Constant always returns rate.
func Constant(rate float64) Schedule {
	return func(int) float64 { return rate }
}

// WarmUp raises the rate linearly, from peak/steps in the first step to peak in the last step of the warm-up. steps
// is the number of steps of the warm-up. Then the rate stays constant. Hugging Face's warm-ups are one step later:
// they equal Linear(0, peak, steps), with rate 0 in the first step.
func WarmUp(peak float64, steps int) Schedule {
	positive("WarmUp", steps)
	return func(committed int) float64 { return peak * progress(committed+1, steps) }
}

// Linear changes the rate linearly over a number of steps, given by the parameter steps. The first step has the rate
// `from`. The step after the last of them has the rate `to`, which then stays constant.
func Linear(from, to float64, steps int) Schedule {
	positive("Linear", steps)
	return func(committed int) float64 {
		return from + (to-from)*progress(committed, steps)
	}
}

// Cosine changes the rate from one value to another along half a cosine wave, over a number of steps. Then
// the rate stays constant (Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm
// Restarts", 2017, without the restarts).
func Cosine(from, to float64, steps int) Schedule {
	positive("Cosine", steps)
	return func(committed int) float64 {
		return between(from, to, progress(committed, steps))
	}
}

// Step starts with the given rate, and multiplies it by factor each time that `every` steps are over.
func Step(rate, factor float64, every int) Schedule {
	positive("Step", every)
	return func(committed int) float64 {
		return rate * math.Pow(factor, float64(committed/every))
	}
}

// OneCycle raises the rate from peak/25 to peak along a cosine in the first 30% of the steps, and
// lowers it to peak/250000 in the remaining steps (Smith and Topin, "Super-Convergence", 2018). It is
// torch.optim.lr_scheduler.OneCycleLR with its defaults.
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

// WSD (warm-up, stable, decay) raises the rate linearly from 0 to peak in the first warmUp steps,
// keeps it, and lowers it linearly to 0 in the last steps, whose number is decay (Hu et al., "MiniCPM", 2024). The
// first step has the rate 0 if there is a warm-up, as in Hugging Face's schedules. WSD panics if warmUp + decay
// exceeds steps.
func WSD(peak float64, steps, warmUp, decay int) Schedule {
	if warmUp < 0 || decay < 0 || steps < warmUp+decay {
		panic(fmt.Sprintf("schedule: WSD with steps %d, warmUp %d and decay %d: want warmUp + decay at most steps", steps, warmUp, decay))
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

// A Phase is one part of a Sequence. Its schedule counts steps from the beginning of the phase.
type Phase struct {
	Steps    int // the length of the phase; ignored in the last phase, which does not end
	Schedule Schedule
}

// Sequence runs one phase after the other. It panics without phases, and if a phase has a negative number of steps.
func Sequence(phases ...Phase) Schedule {
	if len(phases) == 0 {
		panic("schedule: Sequence without phases, want at least one")
	}
	for i, p := range phases {
		if p.Steps < 0 {
			panic(fmt.Sprintf("schedule: phase %d of a Sequence has %d steps, want at least 0", i, p.Steps))
		}
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

// progress returns committed/steps, but at most 1.
func progress(committed, steps int) float64 {
	return min(1, float64(committed)/float64(steps))
}

// between interpolates from one rate to another along half a cosine wave. progress is between 0 and
// 1.
func between(from, to, progress float64) float64 {
	return to + (from-to)*(1+math.Cos(math.Pi*progress))/2
}

// positive panics unless steps is at least 1.
func positive(name string, steps int) {
	if steps < 1 {
		panic(fmt.Sprintf("schedule: %s in %d steps, want at least 1", name, steps))
	}
}
