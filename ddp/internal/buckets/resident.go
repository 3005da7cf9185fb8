package buckets

import "github.com/goddp/goddp/ddp/reducer"

// resident is a hook that has its own memory with the same layout as the buckets. For example, the hook of package
// ddp/zero keeps the parameters in such memory. With a resident the reducer never rebuilds the buckets.
type resident interface {
	// Place is called once, by New, with all buckets in order of index. If Place returns an error,
	// New fails on every rank.
	Place(buckets []reducer.GradBucket) error
}

// place calls Place if the hook is a resident. It reports whether the hook is a resident.
func (r *Reducer) place() (bool, error) {
	h, ok := r.hook.(resident)
	if !ok {
		return false, nil
	}
	var all []reducer.GradBucket
	for i := range r.buckets {
		all = append(all, r.offered(i, nil))
	}
	return true, h.Place(all)
}
