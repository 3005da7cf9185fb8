package buckets

import "github.com/goddp/goddp/ddp/reducer"

// resident is a hook that has its own memory with the same layout as the buckets. For example, the hook of package
// ddp/zero keeps the parameters in such memory. With a resident the reducer never rebuilds the buckets.
type resident interface {
	// Place is called once on all ranks, by New, with all buckets in order of index. It may communicate. If it returns an
	// error, it returns one on every rank.
	Place(buckets []reducer.GradBucket) error
}

// place calls Place of the hook h.
func (r *Reducer) place(h resident) error {
	var all []reducer.GradBucket
	for i := range r.buckets {
		all = append(all, r.offered(i, nil))
	}
	return h.Place(all)
}
