// Package nn provides layers, losses and named parameters.
//
// A [Model] has parameters. A [Module] also maps a variable to a variable. A program builds layers
// without a device: a parameter has a shape and an initializer. [Place] allocates the parameters on a
// device and initializes them. The initial values depend only on the seed and on the parameter's position
// in the model, so they are the same on every rank and every type of device. Wrapping a model for
// distributed training places it. Other programs, and programs that choose a seed, call Place:
//
//	net := nn.Sequential(nn.Linear(784, 128, nil), nn.ReLU(), nn.Linear(128, 10, nil))
//	if err := nn.Place(net, dev, 1); err != nil {
//		return err
//	}
//	loss := nn.CrossEntropyLoss(net.Forward(x), labels, nil)
//
// Parameters have PyTorch's names ("0.weight", "2.bias") and PyTorch's initial distributions.
//
// [State] returns a module's parameters and buffers by these names, and [LoadState] sets them.
// [Parameter.Freeze] excludes a parameter from training. [Checkpoint] saves the memory of a module's
// intermediate results at the cost of a second forward pass:
//
//	for _, p := range backbone.Parameters() {
//		p.Freeze()
//	}
//	net := nn.Sequential(backbone, nn.Checkpoint(head))
//
// # 16-bit types
//
// [Cast] converts a model's parameters to BFloat16 or Float16, except those of modules that the caller
// excludes. A layer converts its input to the type of its parameters and computes in that type. Losses
// of 16-bit values are computed in Float32. Gradients, and the reduction of gradients, then have 16
// bits too, and the optimizer should keep master weights (optim.SGDOptions.MasterWeights):
//
//	err := nn.Cast(net, device.BFloat16, &nn.CastOptions{Keep: []nn.Model{net.Norm}})
//
// CastOptions.Masters initializes the master weights from the unrounded values.
//
// LinearOptions.Compute works like PyTorch's autocast, at a cost in memory and time: parameters,
// gradients and reductions stay in Float32, and each forward pass converts the parameters. Package amp
// scales losses for Float16. The 16-bit types are for GPUs: the CPU computes in Float32 and Float64
// only.
//
// # Modes
//
// Some layers compute differently in training and in evaluation. Models start in training mode. [Eval]
// and [Train] set the mode of a whole model, and return a function that restores each layer's mode:
//
//	restore := nn.Eval(net)
//	autograd.NoGrad(dev, func() { logits = net.Forward(x).Retain() }) // NoGrad frees what is not retained
//	restore()
//
// # Custom models
//
// A custom model is a struct that embeds a [Container] and registers its parts by name, as PyTorch's
// modules do by assignment:
//
//	type Head struct {
//		nn.Container
//		in, out *nn.LinearLayer
//	}
//
//	func NewHead(d, classes int) *Head {
//		h := &Head{}
//		h.in = nn.Add(&h.Container, "in", nn.Linear(d, d, nil))
//		h.out = nn.Add(&h.Container, "out", nn.Linear(d, classes, nil))
//		return h
//	}
//
//	func (h *Head) Forward(x, mask *autograd.Variable) (logits, score *autograd.Variable) {
//		logits = h.out.Forward(autograd.Mul(autograd.Tanh(h.in.Forward(x)), mask))
//		return logits, autograd.Mean(logits)
//	}
//
// Its Forward may have any parameters and results, because [Place], [State], [Cast], optimizers and
// ddp need only the parameters (ddp.Model.Run applies such a model). A model that maps one variable to
// one variable is also a [Module] and can be part of a [Sequential]. Any type with the two methods of
// Module is a Module.
//
// If shapes or types do not match, the panic names the layer, by its position in a Sequential or by its
// parameter, and the parameter ("2.weight").
package nn
