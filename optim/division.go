package optim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// Matrix is a matrix of which each rank has a part, and which one of them orthogonalizes.
type Matrix struct {
	Param *nn.Parameter
	Rank  int           // the rank that orthogonalizes the matrix
	Part  device.Tensor // [elements] of this rank's part
	Whole device.Tensor // [rows columns]; the zero Tensor on other ranks than Rank
}

// division divides the matrices among ranks. With Divide the part of each rank is all of Whole.
type division struct {
	muon     *Muon
	rank     int
	matrices map[*slot]Matrix
	memory   []*autograd.Variable // owns that of the matrices
	exchange func(ms []Matrix, back bool) error
}

// Divide divides the matrices among size ranks: in the following steps each rank orthogonalizes only its
// share, and calls gather to exchange the results. All ranks update all velocities, which is cheap, so all
// ranks keep the same state. Parameters and gradients must be equal on all ranks, as with package ddp, and
// all ranks must make the same steps. gather is called within Step, after it is known that the step is not
// skipped. mine is this rank's part of all. gather must all-gather the parts into all, ordered before any
// later work on the compute stream:
//
//	err := opt.Divide(pg.Rank(), pg.Size(), func(all, mine device.Tensor) error {
//		return pg.AllGather(all, mine).Wait(ctx)
//	})
//
// A [StepHook]'s Updated is not called. If gather returns an error, Step returns an [*InconsistentError]. The results take as much memory as the
// matrices in Float32. Divide returns an error if there is too little memory for them.
func (o *Muon) Divide(rank, size int, gather func(all, mine device.Tensor) error) error {
	type results struct{ all, mine device.Tensor }
	var byType []results
	exchange := func(_ []Matrix, back bool) error {
		if !back { // each rank has the whole matrices
			return nil
		}
		for _, r := range byType {
			if err := gather(r.all, r.mine); err != nil {
				return err
			}
		}
		return nil
	}
	const alignment = device.Align / 4 // results start at multiples of this number of elements
	length := func(s *slot) int { return (s.Shape().Len() + alignment - 1) / alignment * alignment }
	return o.divide(rank, size, exchange, func(d *division, dt device.DType, shares [][]*slot) error {
		part := 0 // the number of elements of a rank
		for _, share := range shares {
			n := 0
			for _, s := range share {
				n += length(s)
			}
			part = max(part, n)
		}
		all, err := d.allocate(dt, size*part)
		if err != nil {
			return err
		}
		for r, share := range shares {
			at := r * part
			for _, s := range share {
				rows, columns := matrix(s.Shape())
				part := all.Range(at, at+rows*columns)
				d.matrices[s] = Matrix{s.Parameter, r, part, part.Reshape(rows, columns)}
				at += length(s)
			}
		}
		byType = append(byType, results{all, all.Range(rank*part, (rank+1)*part)})
		return nil
	})
}

// DivideParts is Divide for an optimizer of parts ([nn.NewPart]), which has a part of each matrix on each of size ranks.
// Each rank updates the velocities of its parts. Then it gets the parts of its share of the matrices from all ranks,
// orthogonalizes these matrices, and sends the parts of the results back. For this Step calls exchange twice, after it
// is known that the step is not skipped, with the matrices that have gradients. exchange must copy each Part of all ranks
// to its place in Whole on the matrix's rank; and if back is set, each Whole to Part on all ranks. Both must be ordered as
// the gather of Divide.
//
// The memory of Part and Whole is twice that of the matrices in Float32, divided by the number of ranks.
func (o *Muon) DivideParts(rank, size int, exchange func(ms []Matrix, back bool) error) error {
	return o.divide(rank, size, exchange, func(d *division, dt device.DType, shares [][]*slot) (err error) {
		for r, share := range shares {
			for _, s := range share {
				m := Matrix{Param: s.Parameter, Rank: r}
				if m.Part, err = d.allocate(dt, s.Var().Shape().Len()); err != nil {
					return err
				}
				if r == rank {
					rows, columns := matrix(s.Shape())
					if m.Whole, err = d.allocate(dt, rows, columns); err != nil {
						return err
					}
				}
				d.matrices[s] = m
			}
		}
		return nil
	})
}

// divide decides which rank orthogonalizes each matrix in the following steps. From the largest matrix to the smallest, it
// gives each to the rank with the least work so far. Then it calls place for each element type with the matrices of each
// rank; place fills division.matrices.
func (o *Muon) divide(rank, size int, exchange func([]Matrix, bool) error, place func(d *division, dt device.DType, shares [][]*slot) error) error {
	d := &division{muon: o, rank: rank, matrices: map[*slot]Matrix{}, exchange: exchange}
	work := func(s *slot) int {
		rows, columns := matrix(s.Shape())
		return rows * columns * min(rows, columns)
	}
	for _, dt := range []device.DType{device.Float32, device.Float64} {
		var slots []*slot
		for _, s := range o.slots {
			if _, ok := s.rule.(*muonRule); ok && wideType(s.DType()) == dt {
				slots = append(slots, s)
			}
		}
		if len(slots) == 0 {
			continue
		}
		slices.SortStableFunc(slots, func(a, b *slot) int { return cmp.Compare(work(b), work(a)) })
		load, shares := make([]int, size), make([][]*slot, size)
		for _, s := range slots {
			r := slices.Index(load, slices.Min(load))
			load[r] += work(s)
			shares[r] = append(shares[r], s)
		}
		if err := place(d, dt, shares); err != nil {
			return fmt.Errorf("optim: dividing matrices among %d ranks: %w", size, err)
		}
	}
	o.division, o.finish = d, d.finish
	return nil
}

// allocate allocates memory for as long as the division exists.
func (d *division) allocate(dt device.DType, shape ...int) (device.Tensor, error) {
	v := autograd.Zeros(d.muon.slots[0].Var().Device(), dt, shape...)
	d.memory = append(d.memory, v)
	if err := v.Err(); err != nil {
		return device.Tensor{}, err
	}
	return v.Tensor(), nil
}

// finish exchanges the matrices, orthogonalizes those of this rank, and updates the parameters.
func (d *division) finish() error {
	var ready []*slot
	var ms []Matrix
	for _, s := range d.muon.ready {
		if m, ok := d.matrices[s]; ok && s.Shape().Len() > 0 {
			ready, ms = append(ready, s), append(ms, m)
		}
	}
	if err := d.exchange(ms, false); err != nil {
		return fmt.Errorf("exchanging matrices: %w", err)
	}
	for i, s := range ready {
		m := ms[i]
		if m.Rank != d.rank {
			continue
		}
		dev := s.Var().Device()
		k, w := kernels.Of(dev), d.muon.workspace(m.Whole.DType, s.Shape())
		w.u = m.Whole
		result, _, err := w.orthogonalize(k, dev.Compute())
		if err == nil && result.Buf.Addr() != m.Whole.Buf.Addr() {
			err = k.Copy(dev.Compute(), m.Whole, result)
		}
		if err != nil {
			return fmt.Errorf("orthogonalizing %s: %w", s.Name(), err)
		}
	}
	if err := d.exchange(ms, true); err != nil {
		return fmt.Errorf("exchanging orthogonalized matrices: %w", err)
	}
	for i, s := range ready {
		part := ms[i].Part
		if part.Len() == 0 {
			continue
		}
		scratch := d.muon.scratch[part.DType].Tensor().Range(0, part.Len())
		if err := s.rule.(*muonRule).apply(s, part, scratch, device.Tensor{}, device.Tensor{}); err != nil {
			return fmt.Errorf("update of %s: %w", s.Name(), err)
		}
	}
	return nil
}
