package lora

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Options are the choices of [Add].
type Options struct {
	Rank    int     // 0 means 8
	Alpha   float64 // the product of an adapter is multiplied by Alpha/Rank; 0 means Rank
	Dropout float64 // the probability with which, in training, an element of an adapter's input is set to 0
	// Targets are the layers that get adapters: full names, or the ends of names after a dot, such as "q_proj". None
	// means all Linear layers except those that share their weight with an embedding, and lm_head.
	Targets []string
	// Seed is that of the initial values, if the model is placed. Otherwise they are of the seed with which it is placed.
	Seed uint64
}

// Adapters are the adapters of a model. As a model, they have the names of PEFT's files.
type Adapters struct {
	nn.Container
	o      Options
	model  nn.Model
	layers []layer
}

// layer is a layer of the model with its name.
type layer struct {
	name string
	*nn.LinearLayer
}

// pair is the two parameters of an adapter.
type pair struct{ *nn.LowRank }

func (p pair) Parameters() []*nn.Parameter { return []*nn.Parameter{p.A, p.B} }

// Add adds an adapter to layers of m, and freezes m's other parameters: see [nn.FreezeBase]. The adapters do not change
// the model's result before they are trained. It returns an error if a target is not a Linear layer of m, or if m has
// adapters already; m is then unchanged. Other errors come from the device.
func Add(m nn.Model, opts *Options) (*Adapters, error) {
	o := *cmp.Or(opts, &Options{})
	o.Rank = cmp.Or(o.Rank, 8)
	o.Alpha = cmp.Or(o.Alpha, float64(o.Rank))
	if o.Rank < 1 || o.Dropout < 0 || o.Dropout >= 1 {
		return nil, fmt.Errorf("lora: rank %d and dropout %v: want a rank of at least 1, and a dropout from 0 to below 1", o.Rank, o.Dropout)
	}
	layers, err := o.choose(m)
	if err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	return add(m, layers, o)
}

func add(m nn.Model, layers []layer, o Options) (*Adapters, error) {
	nn.FreezeBase(m)
	a := &Adapters{o: o, model: m, layers: layers}
	for _, l := range layers {
		out, in := l.Weight.Shape()[0], l.Weight.Shape()[1]
		bound := 1 / math.Sqrt(float64(max(in, 1)))
		l.LowRank = &nn.LowRank{
			A:     nn.NewUnplacedParameter("lora_A.weight", nn.Uniform(-bound, bound), device.Float32, o.Rank, in),
			B:     nn.NewUnplacedParameter("lora_B.weight", nn.Constant(0), device.Float32, out, o.Rank),
			Scale: o.Alpha / float64(o.Rank), Dropout: o.Dropout,
		}
		nn.Add(&a.Container, prefix+l.name, pair{l.LowRank})
	}
	if first := layers[0].Weight; first.Placed() {
		if err := nn.Place(a, first.Var().Device(), o.Seed); err != nil {
			a.remove()
			return nil, fmt.Errorf("lora: %w", err)
		}
	}
	return a, nil
}

// choose returns the targets among m's layers.
func (o *Options) choose(m nn.Model) ([]layer, error) {
	all, err := linears(m)
	if err != nil {
		return nil, err
	}
	if len(o.Targets) == 0 {
		all = slices.DeleteFunc(all, func(l layer) bool { return l.name == "lm_head" || strings.HasSuffix(l.name, ".lm_head") })
		if len(all) == 0 {
			return nil, fmt.Errorf("the model has no Linear layer")
		}
		return all, nil
	}
	var chosen []layer
	for _, t := range o.Targets {
		n := len(chosen)
		for _, l := range all {
			if l.name == t || strings.HasSuffix(l.name, "."+t) {
				chosen = append(chosen, l)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("the model has no Linear layer %q; it has %s", t, ends(all))
		}
	}
	slices.SortStableFunc(chosen, func(a, b layer) int { return position(all, a) - position(all, b) })
	return slices.Compact(chosen), nil
}

func position(all []layer, l layer) int { return slices.Index(all, l) }

// linears returns m's Linear layers that own their weight, in the order of the parameters.
func linears(m nn.Model) ([]layer, error) {
	by := map[any]*nn.LinearLayer{}
	embeddings := map[any]bool{}
	for part := range nn.Parts(m) {
		switch l := part.(type) {
		case *nn.LinearLayer:
			if l.LowRank != nil {
				return nil, fmt.Errorf("the model has adapters already: want Merge first")
			}
			by[l.Weight.Identity()] = l
		case *nn.EmbeddingLayer:
			embeddings[l.Weight.Identity()] = true
		}
	}
	var all []layer
	for _, p := range m.Parameters() {
		if l := by[p.Identity()]; l != nil && !embeddings[p.Identity()] {
			all = append(all, layer{strings.TrimSuffix(p.Name(), ".weight"), l})
		}
	}
	return all, nil
}

// ends returns the last parts of the layers' names, each once.
func ends(all []layer) string {
	var names []string
	for _, l := range all {
		names = append(names, l.name[strings.LastIndex(l.name, ".")+1:])
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// Layers returns the names of the layers that have adapters.
func (a *Adapters) Layers() []string {
	var names []string
	for _, l := range a.layers {
		names = append(names, l.name)
	}
	return names
}

// Merge adds the adapters to the weights, which are computed in Float32 and rounded once, and removes them from the
// model. Then all parameters of the model can be trained. If package ddp/zero divides the weights, all ranks
// call Merge within Whole of its model. The error comes from the device.
func (a *Adapters) Merge() error {
	for _, l := range a.layers {
		if err := l.merge(); err != nil {
			return fmt.Errorf("lora: merging %s: %w", l.name, err)
		}
	}
	a.remove()
	return nil
}

func (l layer) merge() (err error) {
	w := l.Weight.Var()
	dev := w.Device()
	autograd.NoGrad(dev, func() {
		wide := func(p *nn.Parameter) *autograd.Variable { return autograd.Cast(p.Var(), device.Float32) }
		product := autograd.MulScalar(autograd.MatMul(wide(l.LowRank.B), wide(l.LowRank.A)), l.LowRank.Scale)
		sum := autograd.Cast(autograd.Add(wide(l.Weight), product), w.DType())
		if err = sum.Err(); err == nil {
			w.BumpVersion()
			err = dev.Kernels().Copy(dev.Compute(), w.Tensor(), sum.Tensor())
		}
	})
	return err
}

// remove removes the adapters from the model.
func (a *Adapters) remove() {
	for _, l := range a.layers {
		l.LinearLayer.LowRank = nil
	}
	nn.UnfreezeBase(a.model)
}
