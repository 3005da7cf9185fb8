package buckets

import (
	"fmt"
	"github.com/goddp/goddp/ddp/reducer"
	"math"
)

// The default caps of buckets in bytes. The first bucket of an element type is small, so that
// communication starts early.
const (
	defaultFirstBucketCap = 1 << 20
	defaultBucketCap      = 25 << 20
)

// Options are the options of [New]. The zero value is the default. The options must be the same on every
// rank, except for CheckNonFinite.
type Options struct {
	// BucketCapMB is the cap of buckets in MiB. A bucket takes no more parameters once its gradients
	// have reached its cap. 0 means 25, except for the first bucket of each element type: see
	// FirstBucketCapMB.
	BucketCapMB float64
	// FirstBucketCapMB is the cap in MiB of the first bucket of each element type. 0 means the value of
	// BucketCapMB. If both are 0, the cap is 1 MiB.
	FirstBucketCapMB float64
	// BucketCapsMB lists the caps in MiB of the first bucket, the second bucket and so on of each element
	// type. Buckets beyond the list have the last cap. If BucketCapsMB is set, BucketCapMB and
	// FirstBucketCapMB must be 0.
	BucketCapsMB []float64

	// Prescaled says that the engine scales the gradients. When the engine writes a gradient for the last
	// time in a pass, it multiplies the whole gradient, accumulated values included, by [Reducer.Scale].
	// The reducer then only sums the gradients of the ranks, and does not divide.
	Prescaled bool
	// Unused selects the treatment of parameters that a pass does not use.
	Unused Unused
	// CheckNonFinite makes the reducer look for NaN and Inf in this rank's gradients before it reduces
	// them. If it finds any, the pass fails with a [reducer.NonFiniteError]. The option may be set on some
	// ranks only.
	CheckNonFinite bool
	// Hook reduces the buckets in place of an all-reduce.
	Hook reducer.Hook
	// If BeforeLast is not nil, the reducer calls it in each pass that reduces, just before it starts the
	// reduction of the last bucket. By then the engine has enqueued all work that writes gradients.
	// BeforeLast may start a collective on the group: every rank calls BeforeLast at the same place in
	// the order of collectives. The collective precedes the reduction of the last bucket. So the program
	// can wait for the collective without waiting for the last bucket.
	BeforeLast func()
	// Alike are further lists that must be equal on all ranks. New compares the lists of Alike first,
	// then the options, then the parameters, all in one collective. The error describes the first
	// difference.
	Alike []List
}

// caps returns, in bytes, the caps of the first bucket, the second bucket and so on of each element type.
// Further buckets have the last cap.
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

// compared returns lists of the options that must be the same on all ranks. The parameter caps is the
// result of Options.caps.
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
