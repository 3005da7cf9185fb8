// Package amp scales losses, for training in Float16.
//
// Gradients are often smaller than 6e-8, the smallest number of Float16. If the loss is multiplied by a
// large number, the scale, all gradients are larger by the same factor. The optimizer divides them by the scale
// in Float32. If the scale is too large, a gradient becomes infinite: then the step is skipped and the
// scale is halved. A [Scaler] does this in the same way as torch.cuda.amp.GradScaler:
//
//	err := nn.Cast(net, device.Float16, nil)
//	model, err := ddp.New(net, pg, nil)
//	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1, MasterWeights: true})
//	scaler, err := amp.NewScaler(nil)
//	for range steps {
//		loss := nn.CrossEntropyLoss(model.Forward(x), labels, nil)
//		if err := scaler.Scale(loss).Backward(nil); err != nil {
//			return err
//		}
//		if err := scaler.Step(opt); err != nil {
//			return err
//		}
//		scaler.Update()
//		opt.ZeroGrad()
//	}
//
// BFloat16 has the range of Float32 and needs no scaling. The CPU computes in neither of the two
// 16-bit types.
//
// # When the scale changes
//
// [Scaler.Update] evaluates all Steps and Unscales since the previous Update. If one of them found a
// NaN or an infinity in a gradient, Update multiplies the scale by BackoffFactor. After GrowthInterval
// consecutive Updates without one, it multiplies the scale by GrowthFactor. The scale is always a
// finite Float32 number above zero.
//
// A skipped step is not an error: Step returns nil, the parameters and the state of the optimizer are
// unchanged, and the optimizer does not count the step. The Scaler checks each optimizer's gradients
// separately and skips only the steps of optimizers whose gradients overflowed. All optimizers share
// one scale.
//
// # Several ranks
//
// All ranks must skip the same steps and use the same scale. If all gradients come from a ddp.Model,
// this needs no communication: the Scaler checks the gradients after their reduction, when they are
// equal on all ranks, bit for bit. An infinity on one rank, or a sum that overflows in the reduction,
// makes the reduced gradient infinite or NaN on all ranks.
//
// If ranks hold different gradients (parameters that ddp does not reduce, a sharded model), set
// Options.Group. An optimizer that has a method Group() *comm.ProcessGroup, such as that of package
// ddp/zero, supplies the group itself. Each Step then makes one all-reduce of one byte, after the
// gradients and before the updates, even if nothing overflowed. All ranks of the group have to make
// the same steps. If a rank has no memory for that byte, it aborts the group.
//
// After a failure, or if a new process has joined, [Scaler.Agree] makes the scales equal again.
// Package elastic does that by itself for a Scaler in checkpoint.State.Values.
//
// Do not combine a Scaler with ddp.Options.CheckNonFinite or the environment variables for it: that
// check returns an error for the infinite gradients that a Scaler expects.
//
// # What it costs
//
// A step reads every gradient one more time. The division by the scale is part of the update. The device
// decides whether to skip: the updates read the flag there. The host enqueues everything and
// waits at the end of Step, as it also does for the outcome of a reduction. Without ddp this is the only
// wait of a step on a GPU.
//
// # Captured steps
//
// A step with Scale, Unscale, Step and Update can be captured ([autograd.Capture]). If it has an Unscale, the
// gradients must be Float32 or Float64. Neither a skipped step nor a new scale needs a new capture. A step
// that calls GetScale runs uncaptured.
//
// # Clipping
//
// After Backward the gradients are still scaled. [Scaler.Unscale] divides them in a separate pass, for
// code that uses their magnitude before the step:
//
//	if err := scaler.Unscale(opt); err != nil {
//		return err
//	}
//	if _, err := optim.ClipGradNorm(opt.Parameters(), 1, nil); err != nil {
//		return err
//	}
//	err := scaler.Step(opt)
//
// With package ddp/zero clip by opt.ClipGradNorm, since each rank has only a part of the gradients.
//
// Float16 gradients must stay scaled, because small ones would become zero: Unscale returns an error.
// Multiply the bound of the norm by GetScale instead.
package amp
