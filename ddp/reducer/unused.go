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
	// UnusedFound lets each pass use other parameters, and each rank too.
	UnusedFound
	// UnusedFixed lets each rank use other parameters, but the same ones in each pass as in the first
	// successful pass. A pass that uses others is a [*GraphChangedError].
	UnusedFixed
)

func (u Unused) String() string { return [...]string{"missing", "found", "fixed"}[u] }

// reach returns which parameters the pass that begins will use; nil: all.
func (r *Reducer) reach(reached func(i int) bool) []bool {
	if r.unused == UnusedMissing {
		return nil
	}
	for i := range r.reached {
		r.reached[i] = reached(i)
	}
	return r.reached
}

// skipUnused prepares a gradient that the pass does not write, so that it adds nothing to the sum over
// the ranks. What earlier passes accumulated there stays.
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

// exchangesUse reports whether the ranks exchange in each pass which gradients they have. With a static
// graph they do until they know. Within Join they continue, because a rank that makes shadow passes
// uses nothing, and a parameter that only this rank used is then used by no rank.
func (r *Reducer) exchangesUse() bool {
	return r.unused != UnusedMissing && (r.shared == nil || r.joining)
}

// exchangeUse publishes, in a pass that is about to end, which gradients this rank has. With a static
// graph it applies what is already known.
func (r *Reducer) exchangeUse() error {
	for i, shared := range r.shared {
		switch {
		case !shared && !r.fresh[i] && !slices.Contains(r.change.NewlyUsed, r.params[i].Name):
			// A pass that only accumulated used the parameter, which no event reported.
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

// learnUse updates, after a successful pass, which gradients this rank has: if one rank has a gradient,
// all have it now.
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
		r.status.isStale = true // outside of Join the words of parameters are not set any more
	}
}
