package reducer

import (
	"fmt"
	"math"
)

// The caps of buckets in bytes where Options sets none: a small first one, so
// that communication starts early.
const (
	DefaultFirstBucketCap = 1 << 20
	DefaultBucketCap      = 25 << 20
)

// Options are how a Reducer is made. The zero value is the good default. They
// are the same on every rank.
type Options struct {
	// BucketCapMB is the size, in MiB, at which a bucket is closed; 0: 25, and
	// 1 for the first.
	BucketCapMB float64
	// FirstBucketCapMB is the first bucket's; 0: BucketCapMB, if that is set.
	FirstBucketCapMB float64
	// BucketCapsMB are the sizes of the first buckets, one by one, in place of
	// the two above; the last holds for all further ones.
	BucketCapsMB []float64

	// Prescaled tells that the engine multiplies every gradient by Scale in
	// its last write of a pass, so that the average needs no pass of its own.
	Prescaled bool
	// Unused is what to make of parameters that a pass does not use.
	Unused Unused
	// CheckNonFinite looks for NaN and Inf in the gradients before they are
	// reduced: see [NonFiniteError]. It may differ between ranks.
	CheckNonFinite bool
	// Hook reduces the buckets in place of an all-reduce.
	Hook Hook
	// BeforeLast, if not nil, is called in each pass that reduces, behind all of its
	// gradients and just before the last bucket's reduction is started: what it
	// starts on the group has one place there on every rank, and is over before that
	// reduction is, for which nobody has to wait who waits for this.
	BeforeLast func()
	// Alike is what else must be alike on all ranks. New compares it in the same
	// collective as its own options and parameters, and before these.
	Alike []List
}

// caps are the buckets' caps in bytes, first to last.
func (o Options) caps() ([]int, error) {
	mbs := o.BucketCapsMB
	if len(mbs) == 0 {
		mbs = []float64{DefaultFirstBucketCap / (1 << 20), DefaultBucketCap / (1 << 20)}
		if o.BucketCapMB != 0 {
			mbs[0], mbs[1] = o.BucketCapMB, o.BucketCapMB
		}
		if o.FirstBucketCapMB != 0 {
			mbs[0] = o.FirstBucketCapMB
		}
	} else if o.BucketCapMB != 0 || o.FirstBucketCapMB != 0 {
		return nil, fmt.Errorf("reducer: bucket caps of %v MiB, and of %v or %v", mbs, o.FirstBucketCapMB, o.BucketCapMB)
	}
	caps := make([]int, len(mbs))
	for i, mb := range mbs {
		if !(mb > 0 && mb <= math.MaxInt32) {
			return nil, fmt.Errorf("reducer: a bucket cap of %v MiB", mb)
		}
		caps[i] = int(mb * (1 << 20))
	}
	return caps, nil
}

// alike are the options that ranks compare.
func (o Options) alike(caps []int) []List {
	var sizes []string
	for _, c := range caps {
		sizes = append(sizes, fmt.Sprint(c, " bytes"))
	}
	return []List{
		{What: "bucket cap", Items: sizes},
		{What: "option", Items: []string{fmt.Sprint("unused parameters ", o.Unused), "hook " + called(o.Hook)}},
	}
}
