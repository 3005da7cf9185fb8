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
// A program's own module is a type with two methods:
//
//	type toy struct{ w *nn.Parameter }
//
//	func (t toy) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Mul(t.w.Var(), x) }
//	func (t toy) Parameters() []*nn.Parameter                     { return []*nn.Parameter{t.w} }
package nn
