package reducer

import (
	"fmt"
	"math"
)

// The default caps of buckets in bytes. The first is small, so that communication starts early.
const (
	defaultFirstBucketCap = 1 << 20
	defaultBucketCap      = 25 << 20
)

// Options are the options of [New]. The zero value is the default. They are the same on every rank,
// except for CheckNonFinite.
type Options struct {
	// BucketCapMB is the size, in MiB, at which a bucket is closed; 0: 25, and 1 for the first bucket.
	BucketCapMB float64
	// FirstBucketCapMB is the size of the first bucket; 0: BucketCapMB, if that is set.
	FirstBucketCapMB float64
	// BucketCapsMB are the sizes of the buckets one by one, in place of the two above. The last one
	// holds for all further buckets.
	BucketCapsMB []float64

	// Prescaled says that the engine multiplies each gradient by Scale in its last write of a pass,
	// so that the division by the number of ranks needs no separate pass.
	Prescaled bool
	// Unused selects the treatment of parameters that a pass does not use.
	Unused Unused
	// CheckNonFinite looks for NaN and Inf in the gradients before they are reduced: see
	// [NonFiniteError]. It may differ between ranks.
	CheckNonFinite bool
	// Hook reduces the buckets in place of an all-reduce.
	Hook Hook
	// BeforeLast, if not nil, is called in each pass that reduces: after all gradients are final and just
	// before the reduction of the last bucket is started. A call that it starts on the group has the
	// same place in the order of calls on every rank, and ends before the last reduction. Whoever waits
	// for that call need not wait for the last reduction.
	BeforeLast func()
	// Alike are further lists that must be equal on all ranks. New compares them in the same
	// collective as its own options and parameters, and reports differences in them first.
	Alike []List
}

// caps returns the caps of the buckets in bytes, first to last.
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

// compared returns the options that ranks compare.
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
