package reducer

import (
	"slices"

	"github.com/goddp/goddp/device"
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
	// with a [*GraphChangedError].
	UnusedFixed
)

func (u Unused) String() string { return [...]string{"missing", "found", "fixed"}[u] }

// reach returns, by parameter, whether the pass that begins will use it. It returns nil with
// UnusedMissing, which means all parameters.
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
	d := r.pg.Device()
	g := r.grads[i]
	if r.fresh[i] {
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

// exchangesUse reports whether the ranks exchange in this pass which gradients they have. With
// UnusedFixed they do so up to the first successful pass, and between Join and Leave: a rank that makes a
// shadow pass uses no parameter, so a parameter that only this rank uses has no gradient in this pass.
func (r *Reducer) exchangesUse() bool {
	return r.unused != UnusedMissing && (r.shared == nil || r.joining)
}

// exchangeUse is called when a pass is about to end. If exchangesUse, it publishes which gradients this
// rank has. With UnusedFixed, the ranks know from an earlier pass which gradients exist: exchangeUse notes
// a gradient of this rank that did not exist, and marks gradients that other ranks provide as not zeroed.
func (r *Reducer) exchangeUse() error {
	for i, shared := range r.shared {
		switch {
		case !shared && !r.fresh[i] && !slices.Contains(r.change.NewlyUsed, r.params[i].Name):
			// A pass that only accumulated has used the parameter, and the core has not noted it.
			r.change.NewlyUsed = append(r.change.NewlyUsed, r.params[i].Name)
		case shared && r.core.unused[i] && !r.exchangesUse():
			r.fresh[i] = false
		}
	}
	if !r.exchangesUse() {
		return nil
	}
	copy(r.absent, r.fresh)
	return r.status.setUsed(r.absent)
}

// learnUse updates, after a successful pass, which gradients this rank has. Every gradient that some rank
// had before the reductions is now on all ranks.
func (r *Reducer) learnUse() {
	if r.unused == UnusedMissing && r.core.shadow {
		clear(r.fresh)
	}
	if !r.exchangesUse() {
		return
	}
	for i, absent := range r.absent {
		if absent && r.status.isUsed(i) {
			r.fresh[i] = false
		}
	}
	clear(r.absent)
	if r.unused == UnusedFixed && r.shared == nil && r.attendance.Away == nil {
		r.step(event{kind: succeed})
		r.shared = make([]bool, len(r.params))
		for i := range r.shared {
			r.shared[i] = r.status.isUsed(i)
		}
		r.status.isStale = true // words of parameters keep their sums: later passes of a static graph call setUsed only between Join and Leave
	}
}
