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

// tell tells the other ranks, in a pass that is about to end, which gradients
// there are here; and what this rank knows of a static graph, itself.
func (r *Reducer) tell() error {
	switch {
	case r.unused == UnusedMissing:
		return nil
	case r.shared == nil:
		copy(r.absent, r.fresh)
		return r.status.tell(r.absent)
	}
	for i, shared := range r.shared {
		switch {
		case shared && r.core.unused[i]:
			r.fresh[i] = false
		case !shared && !r.fresh[i] && !slices.Contains(r.change.Appear, r.params[i].Name):
			// In a pass that reduced nothing, which nobody looked at.
			r.change.Appear = append(r.change.Appear, r.params[i].Name)
		}
	}
	return nil
}

// learn takes what all ranks told in a pass that succeeded: a gradient that one
// has, all have.
func (r *Reducer) learn() {
	switch {
	case r.unused == UnusedMissing && r.core.shadow:
		clear(r.fresh)
		return
	case r.unused == UnusedMissing || r.shared != nil:
		return
	}
	for i, absent := range r.absent {
		if absent && r.status.used(i) {
			r.fresh[i] = false
		}
	}
	clear(r.absent)
	if r.unused == UnusedFixed && r.attendance.Away == nil {
		r.step(event{kind: succeed})
		r.shared = make([]bool, len(r.params))
		for i := range r.shared {
			r.shared[i] = r.status.used(i)
		}
		r.status.stale = true // nobody tells any more
	}
}
