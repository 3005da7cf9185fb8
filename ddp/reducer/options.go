package reducer

import (
	"fmt"
	"math"
)

// The default caps of buckets in bytes. The first bucket is small, so that communication starts early.
const (
	defaultFirstBucketCap = 1 << 20
	defaultBucketCap      = 25 << 20
)

// Options are the options of [New]. The zero value is the default. The options must be the same on every
// rank, except for CheckNonFinite.
type Options struct {
	// BucketCapMB is the cap of buckets in MiB. A bucket takes no more parameters once its gradients
	// have reached its cap. 0 means 25, and 1 for the first bucket.
	BucketCapMB float64
	// FirstBucketCapMB is the cap of the first bucket in MiB. 0 means BucketCapMB or, if BucketCapMB is 0
	// too, 1.
	FirstBucketCapMB float64
	// BucketCapsMB are the caps of the single buckets in MiB, from the first bucket on. The last cap
	// also holds for all further buckets. If BucketCapsMB is set, BucketCapMB and FirstBucketCapMB must
	// be 0.
	BucketCapsMB []float64

	// Prescaled says that the engine multiplies each gradient by the factor [Reducer.Scale] when it
	// writes the gradient for the last time in a pass. The reducer then does not divide gradients by the
	// number of ranks itself.
	Prescaled bool
	// Unused selects the treatment of parameters that a pass does not use.
	Unused Unused
	// CheckNonFinite looks for NaN and Inf in the gradients before they are reduced: see
	// [NonFiniteError]. It may differ between ranks.
	CheckNonFinite bool
	// Hook reduces the buckets in place of an all-reduce.
	Hook Hook
	// BeforeLast, if not nil, is called in each pass that reduces, just before the reduction of the last
	// bucket starts. All gradients are final then. If BeforeLast starts a collective on the group, the
	// collective has the same place in the order of collectives on every rank, and ends before the
	// reduction of the last bucket. So the program can wait for this collective without waiting for
	// the last bucket.
	BeforeLast func()
	// Alike are further lists that must be equal on all ranks. New compares them in the same
	// collective as the options and parameters. If several lists differ, the error is about a list of
	// Alike.
	Alike []List
}

// caps returns the caps of the buckets in bytes, from the first bucket on.
func (o Options) caps() ([]int, error) {
	mbs := o.BucketCapsMB
	if len(mbs) == 0 {
		mbs = []float64{defaultFirstBucketCap / (1 << 20), defaultBucketCap / (1 << 20)}
		if o.BucketCapMB != 0 {
			mbs[0], mbs[1] = o.BucketCapMB, o.BucketCapMB
		}
		if o.FirstBucketCapMB != 0 {
			mbs[0] = o.FirstBucketCapMB
		}
	} else if o.BucketCapMB != 0 || o.FirstBucketCapMB != 0 {
		return nil, fmt.Errorf("reducer: BucketCapsMB is %v, so FirstBucketCapMB and BucketCapMB must be 0, not %v and %v", mbs, o.FirstBucketCapMB, o.BucketCapMB)
	}
	caps := make([]int, len(mbs))
	for i, mb := range mbs {
		if !(mb > 0 && mb <= math.MaxInt32) {
			return nil, fmt.Errorf("reducer: a bucket cap is %v MiB, want a positive number", mb)
		}
		caps[i] = int(mb * (1 << 20))
	}
	return caps, nil
}

// compared returns lists with the options that must be the same on all ranks. caps is the result of
// Options.caps.
func (o Options) compared(caps []int) []List {
	var sizes []string
	for _, c := range caps {
		sizes = append(sizes, fmt.Sprint(c, " bytes"))
	}
	return []List{
		{What: "bucket cap", Items: sizes},
		{What: "option", Items: []string{fmt.Sprint("unused parameters ", o.Unused), "hook " + hookName(o.Hook)}},
	}
}
