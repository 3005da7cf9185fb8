// Package cucomm lets a program that uses gorgonia.org/cu reduce its memory with NCCL, ordered by
// the program's own stream. It copies nothing, and the host does not wait.
//
//	primary, err := gpu.RetainPrimaryCtx() // gpu is a cu.Device
//	...
//	err = primary.Lock()
//	stream, err := cu.MakeStream(cu.NonBlocking)
//	mem, err := cu.MemAlloc(4 * n)
//	...
//	dev, err := cucomm.Open(gpu, stream, nil)
//	pg, err := comm.Init(ctx, &comm.Options{Device: dev})
//	t, err := dev.Tensor(mem, device.Float32, n)
//	err = pg.AllReduce(t, comm.Sum).Wait(ctx)
//
// The reduction runs after the work that was enqueued on the stream before, and work that is
// enqueued after Wait runs after the reduction. example/main.go is a complete program.
//
// # Contexts
//
// Memory, streams and events belong to a CUDA context. NCCL, like the rest of goddp, uses the
// GPU's primary context. cu.NewContext and cu.Device.MakeContext make other contexts; memory and
// streams that were made there are refused with an [*OtherContextError]. A program gets the
// primary context from cu.Device.RetainPrimaryCtx, and a *cu.Ctx for it from
// cu.CtxFromCUContext. It must call ReleasePrimaryCtx in the end, rather than Close or Destroy the
// context.
//
// # How streams are ordered
//
// comm orders its calls relative to the device's compute stream. A [Device] is goddp's own device
// for the GPU with a different compute stream, which represents the program's stream. It uses a
// stream of goddp's, the proxy. To record an event, the Device first makes the proxy wait for the
// program's stream, and then records the event on the proxy. To wait for an event, the Device
// makes the proxy wait for it, and then the program's stream for the proxy.
//
// Use the device only with comm. Its kernels, which autograd uses, do not run on the program's
// stream.
//
// # Building
//
// This is a separate module, because gorgonia.org/cu needs CUDA's headers to build, links libcuda,
// and exits the process if there is no driver. The README says how to build it with CUDA 11, 12 and
// 13.
package cucomm
