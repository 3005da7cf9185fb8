// Package nn has layers, losses and named parameters.
//
// A [Module] maps a variable to a variable and has parameters. Layers are put
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
// # Modules of a program's own
//
// A program's own module is a type with two methods:
//
//	type toy struct{ w *nn.Parameter }
//
//	func (t toy) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Mul(t.w.Var(), x) }
//	func (t toy) Parameters() []*nn.Parameter                     { return []*nn.Parameter{t.w} }
package nn
