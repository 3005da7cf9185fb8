// Package cucomm lets a program of gorgonia.org/cu reduce its own memory, in the
// order of its own stream, through internal/backend/nccl: nothing is copied, and nothing
// waits on the host.
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
// The reduction runs behind what the stream was given before, and what it is
// given after Wait runs behind the reduction. example/main.go is a whole program.
//
// # Contexts
//
// Memory, streams and events belong to a context of CUDA's, and NCCL, like the
// rest of goddp, uses the GPU's primary one. cu.NewContext and
// cu.Device.MakeContext make another; what was made there is refused with a
// [*ForeignContextError]. A program gets the primary one from
// cu.Device.RetainPrimaryCtx, and a *cu.Ctx of it from cu.CtxFromCUContext. It
// must not Close or Destroy that: ReleasePrimaryCtx is the counterpart.
//
// # How streams are ordered
//
// comm orders its calls by the device's compute stream. A [Device] is goddp's
// own device for the GPU, but its compute stream stands for the program's: a
// point of it is one of a stream of goddp's that was made to wait for the
// program's by an event, and where it has to wait for something, goddp's stream
// does, and the program's for that, by another event.
//
// The device has no other use than comm's. In particular its kernels, and so
// autograd, do not take the program's stream.
//
// # Building
//
// This is a module of its own: importing gorgonia.org/cu links libcuda and takes
// CUDA's headers, and ends a process that finds no driver. The README says how
// it is built, and what is known of CUDA 11, 12 and 13.
package cucomm
