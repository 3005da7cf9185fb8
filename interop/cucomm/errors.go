package cucomm

// #include <cuda.h>
import "C"

import "fmt"

// OtherContextError says that memory or a stream does not belong to the GPU's primary context.
type OtherContextError struct {
	What             string // "memory at 0x7f0a2e000000", "stream 0x55d0c81b2a40"
	Device           string // "cuda:0"
	Context, Primary uintptr
}

func (e *OtherContextError) Error() string {
	return fmt.Sprintf("cucomm: %s is of context %#x, and NCCL works in the primary context of %s, %#x: make it there, with the context from cu.Device.RetainPrimaryCtx current (ctx.Lock, or a *cu.Ctx from cu.CtxFromCUContext) rather than one from NewContext or MakeContext",
		e.What, e.Context, e.Device, e.Primary)
}

// Error is the error of a call of the CUDA driver.
type Error struct {
	Call string
	Code int
	Name string // "CUDA_ERROR_INVALID_VALUE"
}

func (e *Error) Error() string { return fmt.Sprintf("cucomm: %s: %s (%d)", e.Call, e.Name, e.Code) }

func check(call string, code C.CUresult) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	var name *C.char
	C.cuGetErrorName(code, &name)
	return &Error{Call: call, Code: int(code), Name: C.GoString(name)}
}
