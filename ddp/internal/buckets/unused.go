package buckets

import (
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// Unused selects how a Reducer treats parameters that a pass does not use.
type Unused uint8

const (
	// UnusedMissing makes unused parameters an error: their gradients are missing.
	UnusedMissing Unused = iota
	// UnusedFound allows that the used parameters differ from pass to pass and from rank to rank.
	UnusedFound
	// UnusedFixed is for a static graph. The used parameters may differ from rank to rank, but every
	// pass of a rank must use the same parameters as its first successful pass. Otherwise the pass fails
	// with a [*reducer.GraphChangedError].
	UnusedFixed
)

func (u Unused) String() string { return [...]string{"missing", "found", "fixed"}[u] }

// reach returns, by parameter, whether the pass that begins will use the parameter. With UnusedMissing it
// returns nil, which means that the pass will use all parameters.
func (r *Reducer) reach(reached func(i int) bool) []bool {
	if r.unused == UnusedMissing {
		return nil
	}
	for i := range r.reached {
		r.reached[i] = reached(i)
	}
	return r.reached
}

// skipUnused prepares gradient i, which the pass does not write, so that this pass adds nothing to the
// sum over the ranks. Values that earlier passes have accumulated in the gradient stay.
func (r *Reducer) skipUnused(i int) error {
	if r.buckets[r.core.home[i]].slot != own {
		return nil // launch zeroes it: see zeroUnused
	}
	d := r.pg.Device()
	g := r.grads[i]
	if r.states[i].Content != gradsink.Written {
		return d.Kernels().Fill(d.Compute(), g, 0)
	}
	if r.scale != 1 {
		if err := d.Kernels().Axpby(d.Compute(), g, device.Accum{Alpha: r.scale}, g); err != nil {
			return err
		}
	}
	if r.scan != nil {
		return r.scan.check(i, g)
	}
	return nil
}

// exchangesUse reports whether, in this pass, each rank tells the other ranks which gradients it has. With
// UnusedMissing the ranks never do so, with UnusedFound they do so in every pass. With UnusedFixed they do
// so until a pass has succeeded that no rank made as a shadow pass, and in every pass between Join and
// Leave. The reason: a rank that makes a shadow pass has no gradients. If no other rank uses some parameter,
// no rank has a gradient for this parameter in the pass, and the ranks must learn this.
func (r *Reducer) exchangesUse() bool {
	return r.unused != UnusedMissing && (r.shared == nil || r.joining)
}

// exchangeUse is called at the end of a pass that reduces, before the status is reduced. If exchangesUse
// returns true, exchangeUse sets the words of the status that say which gradients this rank has.
//
// With UnusedFixed, r.shared says for which parameters some rank had a gradient in an earlier pass. If this
// rank now has a gradient for another parameter, exchangeUse notes a change of the graph. If this rank does
// not use a shared parameter, exchangeUse marks its gradient as not zeroed, because the reduction will
// write it.
func (r *Reducer) exchangeUse() error {
	for i, shared := range r.shared {
		switch {
		case !shared && r.states[i].Content == gradsink.Written && !slices.Contains(r.change.NewlyUsed, r.params[i].Name):
			// An earlier pass that only accumulated has written this gradient. The core does not notice this: it
			// compares only passes that reduce.
			r.change.NewlyUsed = append(r.change.NewlyUsed, r.params[i].Name)
		case shared && r.core.unused[i] && !r.exchangesUse():
			r.states[i].Content = gradsink.Written
		}
	}
	if !r.exchangesUse() {
		return nil
	}
	for i := range r.states {
		if s := &r.states[i]; s.Content == gradsink.Zeroed {
			s.Content = gradsink.Unknown
		}
	}
	return r.status.setUsed(r.states)
}

// learnUse is called after a successful pass. It updates r.states: if some rank had a gradient before the
// reductions, all ranks have this gradient now.
func (r *Reducer) learnUse() {
	for i := range r.states {
		switch s := &r.states[i]; {
		case s.Content == gradsink.Unknown && !r.status.isUsed(i):
			s.Content = gradsink.Zeroed
		case s.Content == gradsink.Unknown || r.unused == UnusedMissing && r.core.shadow:
			s.Content = gradsink.Written
		}
	}
	if !r.exchangesUse() {
		return
	}
	if r.unused == UnusedFixed && r.shared == nil && r.attendance.Away == nil {
		r.step(event{kind: succeed})
		r.shared = make([]bool, len(r.params))
		for i := range r.shared {
			r.shared[i] = r.status.isUsed(i)
		}
		// The words of parameters now hold sums. The next pass must clear them, because it may not call
		// setUsed, which overwrites them: passes of a static graph call setUsed only between Join and Leave.
		r.isStale = true
	}
}
