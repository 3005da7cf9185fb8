package reducer

import (
	"slices"

	"github.com/goddp/goddp/device"
)

// Unused is what a Reducer makes of parameters that a pass does not use.
type Unused uint8

const (
	// UnusedMissing: their gradients are missing, which is an error.
	UnusedMissing Unused = iota
	// UnusedFound: each pass says which they are, on each rank others.
	UnusedFound
	// UnusedFixed: the first pass that succeeds says which they are, on each
	// rank others, and any other one is a [*GraphChangedError].
	UnusedFixed
)

func (u Unused) String() string { return [...]string{"missing", "found", "fixed"}[u] }

// reach is which parameters a pass that begins will use; nil for all of them.
func (r *Reducer) reach(reached func(i int) bool) []bool {
	if r.unused == UnusedMissing {
		return nil
	}
	for i := range r.reached {
		r.reached[i] = reached(i)
	}
	return r.reached
}

// spare makes a gradient that the pass does not write one that adds nothing of
// this pass to the sum over the ranks: what earlier passes left there stays.
func (r *Reducer) spare(i int) error {
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
		return r.scan.look(i, g)
	}
	return nil
}

// tells tells whether the ranks tell each other, in each pass, which gradients they
// have. Those of a static graph do until they know. Within Join they go on: a rank that
// shadows the others uses nothing, and what it alone did no rank uses any more.
func (r *Reducer) tells() bool {
	return r.unused != UnusedMissing && (r.shared == nil || r.joining)
}

// tell tells the other ranks, in a pass that is about to end, which gradients
// there are here; and what this rank knows of a static graph, itself.
func (r *Reducer) tell() error {
	for i, shared := range r.shared {
		switch {
		case !shared && !r.fresh[i] && !slices.Contains(r.change.Appear, r.params[i].Name):
			// In a pass that reduced nothing, which nobody looked at.
			r.change.Appear = append(r.change.Appear, r.params[i].Name)
		case shared && r.core.unused[i] && !r.tells():
			r.fresh[i] = false
		}
	}
	if !r.tells() {
		return nil
	}
	copy(r.absent, r.fresh)
	return r.status.tell(r.absent)
}

// learn takes what all ranks told in a pass that succeeded: a gradient that one
// has, all have.
func (r *Reducer) learn() {
	if r.unused == UnusedMissing && r.core.shadow {
		clear(r.fresh)
	}
	if !r.tells() {
		return
	}
	for i, absent := range r.absent {
		if absent && r.status.used(i) {
			r.fresh[i] = false
		}
	}
	clear(r.absent)
	if r.unused == UnusedFixed && r.shared == nil && r.attendance.Away == nil {
		r.step(event{kind: succeed})
		r.shared = make([]bool, len(r.params))
		for i := range r.shared {
			r.shared[i] = r.status.used(i)
		}
		r.status.stale = true // but for Join nobody tells any more
	}
}
