package reducer

// Resident is a Hook that has memory of its own with the same layout as the buckets. For example, the hook
// of package ddp/zero keeps the parameters in such memory. With a Resident the reducer never rebuilds the buckets.
type Resident interface {
	Hook
	// Place is called once, by New, with all buckets in order of index. If Place returns an error,
	// New fails on every rank.
	Place(buckets []GradBucket) error
}

// place calls Place if the hook is a Resident. It reports whether the hook is a Resident.
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
