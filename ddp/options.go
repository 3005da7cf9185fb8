package ddp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Options are how a Model is made. The zero value is the good default. They
// are the same on every rank.
type Options struct {
	// Seed chooses the first values of the parameters that have no place yet: see
	// [nn.Place]. Rank 0's counts.
	Seed uint64

	// BucketCapMB is the size of a bucket, in MiB of gradients; 0: 25, and 1
	// for the first, so that communication starts early. As in PyTorch, a
	// value that is set holds for the first bucket too.
	BucketCapMB float64
	// FirstBucketCapMB is the first bucket's own; 0: as BucketCapMB says.
	FirstBucketCapMB float64
	// BucketCapsMB are the sizes of the first buckets one by one, in place of
	// the two above; the last holds for all further ones.
	BucketCapsMB []float64

	// FindUnusedParameters allows parameters that a backward pass does not
	// reach, other ones in each pass and on each rank.
	FindUnusedParameters bool
	// StaticGraph allows parameters that backward passes do not reach, the same
	// ones in all passes of a rank. A pass that reaches others than the first
	// one did is a [*reducer.GraphChangedError] on every rank. It goes before
	// FindUnusedParameters.
	StaticGraph bool
	// Ignore names parameters and buffers that are each rank's own: they are
	// not compared, set to rank 0's, or averaged.
	Ignore []string
	// SkipInitSync has New leave parameters and buffers as they are: the
	// program has made them equal on all ranks.
	SkipInitSync bool
	// LocalBuffers has backward passes leave each rank its own buffers.
	LocalBuffers bool
	// Hook reduces the buckets in place of an all-reduce: see package
	// [github.com/goddp/goddp/ddp/commhook]. One that is an [autograd.Observer] too
	// is told of the backward passes through the model, before the model is.
	Hook reducer.Hook
	// ReduceDType is the type that gradients of 16-bit parameters are added up
	// and reduced in: Float32, or 0 for their own. Float32 rounds none of the
	// sums, takes twice the memory and the communication, and an optimizer with
	// MasterWeights.
	ReduceDType device.DType

	// CheckReplicas compares the ranks' parameters at every so many backward
	// passes that reduce; 1: at each; 0: never. Those that differ are a
	// [*ReplicaDriftError] from that pass's Backward, on every rank.
	CheckReplicas int
	// CheckNonFinite looks for NaN and Inf in the gradients before they are
	// reduced: a [*reducer.NonFiniteError] on every rank says whose they are.
	// GODDP_NAN_CHECK=1, or TORCH_NCCL_NAN_CHECK=1, does so too. It need not
	// be the same on every rank.
	CheckNonFinite bool
	// Stats measures times for [Model.Stats]. It costs a GPU some microseconds
	// for each bucket. It need not be the same on every rank.
	Stats bool
}

// shared are the module's parameters and buffers but for those to be ignored. The
// error is that of a name that is neither's.
func (o Options) shared(module nn.Model) (params []*nn.Parameter, buffers []*nn.Buffer, err error) {
	found := map[string]bool{}
	keep := func(name string) bool {
		ignored := slices.Contains(o.Ignore, name)
		found[name] = ignored
		return !ignored
	}
	for _, p := range module.Parameters() {
		if keep(p.Name()) {
			params = append(params, p)
		}
	}
	for _, b := range nn.Buffers(module) {
		if keep(b.Name()) {
			buffers = append(buffers, b)
		}
	}
	for _, name := range o.Ignore {
		if !found[name] {
			err = errors.Join(err, fmt.Errorf("%q, to be ignored, is no parameter's name and no buffer's", name))
		}
	}
	return params, buffers, err
}

// gradients are the parameters' gradients as they are reduced.
func (o Options) gradients(params []*nn.Parameter) []reducer.Param {
	grads := listed(params)
	for i := range grads {
		if g := &grads[i]; g.DType.Size() < o.ReduceDType.Size() {
			g.DType = o.ReduceDType
		}
	}
	return grads
}

// check returns what makes no sense on its own.
func (o Options) check() error {
	if o.ReduceDType != device.Invalid && o.ReduceDType != device.Float32 {
		return fmt.Errorf("ReduceDType is %v, want float32, or none", o.ReduceDType)
	}
	if o.CheckReplicas < 0 {
		return fmt.Errorf("CheckReplicas is %d, want a number of passes, or 0", o.CheckReplicas)
	}
	return nil
}

func (o Options) unused() reducer.Unused {
	switch {
	case o.StaticGraph:
		return reducer.UnusedFixed
	case o.FindUnusedParameters:
		return reducer.UnusedFound
	}
	return reducer.UnusedMissing
}

// described are the options that must be the same on every rank, but for the
// reducer's.
func (o Options) described() reducer.List {
	return reducer.List{What: "option", Items: []string{
		fmt.Sprint("CheckReplicas ", o.CheckReplicas), fmt.Sprint("SkipInitSync ", o.SkipInitSync), fmt.Sprint("LocalBuffers ", o.LocalBuffers),
	}}
}
