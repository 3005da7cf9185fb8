// Package amp scales losses, for training in Float16.
//
// The smallest number of Float16 is 6e-8, and gradients are often smaller. Those
// of a loss that is multiplied by some large number are as much larger, and the
// optimizer divides by it again, in Float32. How large it may be shows when a
// gradient becomes infinite: that step is skipped, and the number halved. A
// [Scaler] does this as torch.cuda.amp.GradScaler does:
//
//	err := nn.Cast(net, device.Float16)
//	model, err := ddp.New(net, pg, nil)
//	opt := optim.NewSGD(model.Parameters(), optim.SGDOptions{LR: 0.1, MasterWeights: true})
//	scaler := amp.NewScaler(nil)
//	for range steps {
//		loss := nn.CrossEntropyLoss(model.Forward(x), labels)
//		if err := scaler.Scale(loss).Backward(); err != nil {
//			return err
//		}
//		if err := scaler.Step(opt); err != nil {
//			return err
//		}
//		scaler.Update()
//		opt.ZeroGrad()
//	}
//
// BFloat16 reaches as far as Float32 and needs none of this. The CPU computes in
// neither of the two.
//
// # The rule
//
// [Scaler.Update] looks at the steps since the last one, and at gradients that were
// unscaled for a step that the program then left out. If the gradients of any
// held a NaN or an infinity, the scale is multiplied by BackoffFactor. After
// GrowthInterval Updates in a row without, it is multiplied by GrowthFactor. The
// scale is a number of Float32, and never becomes infinite or zero.
//
// A step that is skipped is no error: Step returns nil, parameters and the
// optimizer's state are as they were, and its committed steps do not count it.
// Every optimizer has its own gradients looked at and is skipped by these alone;
// all share the scale.
//
// # Several ranks
//
// The ranks must agree on what they skip, and on the scale. Where all of an
// optimizer's gradients come from a ddp.Model they do, with nothing to send:
// gradients are looked at after they were reduced, when they are equal on all
// ranks, bit for bit, and what is infinite on one has become infinite or NaN on
// all. So has a sum that overflowed in the reduction.
//
// Where ranks hold gradients of their own (parameters that ddp does not reduce,
// parts of a sharded model) give Options.Group; an optimizer that is [Divided] among
// ranks (package ddp/zero) brings it along. Each Step then makes one
// all-reduce of one byte, behind the gradients and before the updates, whether
// there was an overflow or not; all ranks of the group have to take the same steps.
// A rank without the memory for that byte breaks the group.
//
// After a failure, or where a rank has joined anew, [Scaler.Agree] makes the
// scales equal again, as ddp.Recover does parameters and the optimizer's state.
//
// ddp.Options.CheckNonFinite and its environment variables make errors of what
// is a Scaler's daily business: leave them off.
//
// # What it costs
//
// A step reads every gradient once more, and the update does the division: there
// is no pass of its own for that. Whether to skip is decided on the device, where
// the updates read it. The host enqueues everything, and waits at the end of Step
// as it does for the outcome of a reduction; without ddp, this is the one wait
// of a step on a GPU, until the gradients were looked at.
//
// # Clipping
//
// Gradients are still scaled after Backward. [Scaler.Unscale] divides them, in a
// pass of its own, for code that looks at their size before the step:
//
//	if err := scaler.Unscale(opt); err != nil {
//		return err
//	}
//	if _, err := optim.ClipGradNorm(opt.Parameters(), 1); err != nil {
//		return err
//	}
//	err := scaler.Step(opt)
//
// Gradients in Float16 must stay scaled, or lose what the scale was for: Unscale
// panics, and the bound is to be multiplied by GetScale instead.
package amp
