package reducer

// Resident is a Hook that keeps memory of its own in the layout of the buckets,
// such as the parameters that belong to the gradients (package ddp/zero). The
// buckets are then those of the first pass for good: they are not rebuilt.
type Resident interface {
	Hook
	// Place is told the buckets, in order of index, where New makes them. Its
	// error is New's, on every rank.
	Place(buckets []GradBucket) error
}

// place tells a Resident the buckets, and whether there is one.
func (r *Reducer) place() (bool, error) {
	h, resident := r.hook.(Resident)
	if !resident {
		return false, nil
	}
	var all []GradBucket
	for i := range r.buckets {
		all = append(all, r.offered(i, nil))
	}
	return true, h.Place(all)
}
