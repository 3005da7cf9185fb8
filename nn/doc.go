// Package nn has layers, losses and named parameters.
//
// A [Model] has parameters; a [Module] also maps a variable to a variable. Layers are put
// together without a device: a parameter knows its shape and how it begins,
// and [Place] gives it memory, with numbers that are a function of the seed and
// the parameter's place in the model alone, so that they are the same on every
// rank and kind of device. Wrapping a model for distributed training places
// it; a program that does not, or that wants a seed, calls Place:
//
//	net := nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
//	if err := nn.Place(net, dev, 1); err != nil {
//		return err
//	}
//	loss := nn.CrossEntropyLoss(net.Forward(x), labels)
//
// Parameters are named as PyTorch names them ("0.weight", "2.bias"), and begin
// by the same rules.
//
// [State] is a module's parameters and buffers by these names, and [LoadState]
// sets them. [Parameter.Freeze] takes a parameter out of training;
// [Checkpoint] trades a second forward pass through a module for the memory of
// what it computes on the way:
//
//	for _, p := range backbone.Parameters() {
//		p.Freeze()
//	}
//	net := nn.Sequential(backbone, nn.Checkpoint(head))
//
// # 16-bit types
//
// [Cast] makes a model's parameters BFloat16 or Float16, as far as wanted: a layer
// converts what comes in to the type that it computes in, which is that of its
// parameters, and a loss of 16-bit values is computed in Float32. Gradients, and
// their reduction, are then of 16 bits too, and the optimizer should keep
// masters (optim.SGDOptions.MasterWeights):
//
//	err := nn.Cast(net, device.BFloat16, net.Norm)
//
// LinearOptions.Compute is the other way, which costs memory and time: Float32
// parameters, with Float32 gradients and reductions, that are converted in each
// forward pass, as PyTorch's autocast does. Package amp scales losses for Float16. All that is
// for GPUs: the CPU computes in Float32 and Float64 alone.
//
// # Modes
//
// Some layers compute otherwise in training than in evaluation. Models begin in training
// mode; [Eval] and [Train] set the mode of a whole model:
//
//	nn.Eval(net)
//	autograd.NoGrad(dev, func() { logits = net.Forward(x) })
//	nn.Train(net)
//
// # Models of a program's own
//
// A program's own model is a struct that embeds a [Container] and registers its parts by
// name, as PyTorch's modules do by assignment:
//
//	type Head struct {
//		nn.Container
//		in, out *nn.LinearLayer
//	}
//
//	func NewHead(d, classes int) *Head {
//		h := &Head{}
//		h.in = nn.Add(&h.Container, "in", nn.Linear(d, d))
//		h.out = nn.Add(&h.Container, "out", nn.Linear(d, classes))
//		return h
//	}
//
//	func (h *Head) Forward(x, mask *autograd.Variable) (logits, score *autograd.Variable) {
//		logits = h.out.Forward(autograd.Mul(autograd.Tanh(h.in.Forward(x)), mask))
//		return logits, autograd.Mean(logits)
//	}
//
// Its Forward may take and return what it likes: [Place], [State], [Cast], optimizers and
// ddp need the parameters alone (ddp.Model.Run applies such a model). One that maps one
// variable to one is a [Module] too, and goes into [Sequential]. A type with the two
// methods of Module, and nothing of this package in it, is one as well.
//
// Where a shape or a type does not fit, the panic names the layer: by its parameter that
// the operation used, or by its place in a Sequential.
package nn
