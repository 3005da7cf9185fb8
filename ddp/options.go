package ddp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Options are the options of [New]. The zero value is the default. They are the same on every rank,
// unless their comment says otherwise.
type Options struct {
	// Seed determines the initial values of parameters that are not on a device yet: see [nn.Place]. All ranks
	// use rank 0's seed.
	Seed uint64

	// BucketCapMB is the size of a bucket, in MiB of gradients. 0 means 25, and 1 for the first bucket, so
	// that communication starts early. As in PyTorch, any other value applies to the first bucket too.
	BucketCapMB float64
	// FirstBucketCapMB is the size of the first bucket; 0 means that BucketCapMB determines it.
	FirstBucketCapMB float64
	// BucketCapsMB lists the size of each bucket and replaces BucketCapMB. The last size applies to all
	// further buckets.
	BucketCapsMB []float64

	// FindUnusedParameters allows parameters that a backward pass does not reach. They may differ
	// between passes and between ranks.
	FindUnusedParameters bool
	// StaticGraph allows parameters that no backward pass of a rank reaches. If a pass reaches other
	// parameters than the first pass, every rank gets a [*reducer.GraphChangedError]. StaticGraph takes
	// precedence over FindUnusedParameters.
	StaticGraph bool
	// Ignore lists names of parameters and buffers that differ between ranks: New and backward passes do not
	// compare, synchronize or average them.
	Ignore []string
	// SkipInitSync makes New leave parameters, their masters and buffers unchanged. The program must have made
	// them equal on all ranks.
	SkipInitSync bool
	// LocalBuffers lets each rank keep its own buffers: backward passes do not synchronize them.
	LocalBuffers bool
	// Hook reduces the buckets instead of an all-reduce: see package [github.com/goddp/goddp/ddp/commhook]. A
	// hook that is also an [autograd.Observer] is notified of the backward passes through the model. It is notified
	// before the model.
	Hook reducer.Hook
	// ReduceDType is the type in which gradients of 16-bit parameters are accumulated and reduced:
	// Float32, or 0 for their own type. Float32 does not round the sums. It doubles the memory of
	// gradients and the communication, and needs an optimizer with MasterWeights.
	ReduceDType device.DType

	// CheckReplicas compares the parameters of all ranks in every CheckReplicas-th backward pass that
	// reduces; 0 means never. If they differ, Backward returns a [*ReplicaDriftError] on every rank.
	CheckReplicas int
	// CheckNonFinite looks for NaN and Inf in the gradients before they are reduced. A
	// [*reducer.NonFiniteError] on every rank names the rank and the parameter.
	// GODDP_NAN_CHECK=1 or TORCH_NCCL_NAN_CHECK=1 in the environment sets it too. It may differ between
	// ranks.
	CheckNonFinite bool
	// Stats measures the times in [Model.Stats]. On a GPU it costs some microseconds per bucket. It may
	// differ between ranks.
	Stats bool
}

// shared returns the parameters and buffers that are not ignored. It returns an error if a name in Ignore
// is neither a parameter nor a buffer.
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
			err = errors.Join(err, fmt.Errorf("Options.Ignore names %q, which is neither a parameter nor a buffer", name))
		}
	}
	return params, buffers, err
}

// gradients describes the parameters' gradients to the reducer.
func (o Options) gradients(params []*nn.Parameter) []reducer.Param {
	grads := listed(params)
	for i := range grads {
		if g := &grads[i]; g.DType.Size() < o.ReduceDType.Size() {
			g.DType = o.ReduceDType
		}
	}
	return grads
}

// check returns an error if an option cannot be used.
func (o Options) check() error {
	if o.ReduceDType != device.Invalid && o.ReduceDType != device.Float32 {
		return fmt.Errorf("ReduceDType is %v, want Float32, or the zero value for the gradients' type", o.ReduceDType)
	}
	if o.CheckReplicas < 0 {
		return fmt.Errorf("CheckReplicas is %d, want a positive number of passes, or 0 for no checks", o.CheckReplicas)
	}
	return nil
}

func (o Options) unused() buckets.Unused {
	switch {
	case o.StaticGraph:
		return buckets.UnusedFixed
	case o.FindUnusedParameters:
		return buckets.UnusedFound
	}
	return buckets.UnusedMissing
}

// described returns the options for the comparison between ranks, except those that the reducer
// compares.
func (o Options) described() buckets.List {
	return buckets.List{What: "option", Items: []string{
		fmt.Sprint("CheckReplicas ", o.CheckReplicas), fmt.Sprint("SkipInitSync ", o.SkipInitSync), fmt.Sprint("LocalBuffers ", o.LocalBuffers),
	}}
}
