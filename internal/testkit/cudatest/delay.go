//go:build cgo && linux

package cudatest

/*
#include <stddef.h>
#include <stdint.h>

// These are the driver's functions, with the types of its documentation. Each call first makes the
// context current, because the current context belongs to the thread.
typedef int (*set_current)(uintptr_t ctx);
typedef int (*load_data)(uintptr_t *module, const void *image);
typedef int (*get_function)(uintptr_t *function, uintptr_t module, const char *name);
typedef int (*launch_kernel)(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, uintptr_t stream, void **params, void **extra);

static int load(void *set, void *data, void *get, uintptr_t ctx, const char *image, const char *name, uintptr_t *function) {
	uintptr_t module;
	int r = ((set_current)set)(ctx);
	if (r == 0) r = ((load_data)data)(&module, image);
	if (r == 0) r = ((get_function)get)(function, module, name);
	return r;
}

static int launch(void *set, void *run, uintptr_t ctx, uintptr_t function, uintptr_t stream, uint64_t ns) {
	void *params[] = {&ns};
	int r = ((set_current)set)(ctx);
	if (r == 0) r = ((launch_kernel)run)(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
	return r;
}
*/
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
)

// delay is the kernel in PTX, which the driver compiles. Its one thread polls the GPU's nanosecond
// clock until ns have passed.
const delay = `
.version 7.0
.target sm_80
.address_size 64
.visible .entry delay(.param .u64 ns)
{
	.reg .u64 %end, %now;
	.reg .pred %more;
	ld.param.u64 %end, [ns];
	mov.u64 %now, %globaltimer;
	add.u64 %end, %end, %now;
again:
	mov.u64 %now, %globaltimer;
	setp.lt.u64 %more, %now, %end;
	@%more bra again;
	ret;
}
`

// gpu is the part of a device of package cuda that Delay calls.
type gpu interface {
	Context() uintptr
	Lookup(symbol string) (unsafe.Pointer, error)
}

// Delay returns a function that enqueues, on a stream of dev, a kernel of one thread that
// runs for a given time. Delay loads a module, and may wait for work in flight.
func Delay(on device.Device) (func(s device.Stream, d time.Duration) error, error) {
	dev, ok := on.(gpu)
	if !ok {
		return nil, fmt.Errorf("cudatest: %v is not a GPU", on)
	}
	symbols := map[string]unsafe.Pointer{"cuCtxSetCurrent": nil, "cuModuleLoadData": nil, "cuModuleGetFunction": nil, "cuLaunchKernel": nil}
	for name := range symbols {
		f, err := dev.Lookup(name)
		if err != nil {
			return nil, err
		}
		symbols[name] = f
	}
	image, name := C.CString(delay), C.CString("delay")
	defer C.free(unsafe.Pointer(image))
	defer C.free(unsafe.Pointer(name))
	ctx, set := C.uintptr_t(dev.Context()), symbols["cuCtxSetCurrent"]
	var kernel C.uintptr_t
	if code := C.load(set, symbols["cuModuleLoadData"], symbols["cuModuleGetFunction"], ctx, image, name, &kernel); code != 0 {
		return nil, fmt.Errorf("cudatest: %v: loading the kernel: error %d", on, code)
	}
	return func(s device.Stream, d time.Duration) error {
		stream := C.uintptr_t(s.(interface{ Handle() uintptr }).Handle())
		if code := C.launch(set, symbols["cuLaunchKernel"], ctx, kernel, stream, C.uint64_t(d.Nanoseconds())); code != 0 {
			return fmt.Errorf("cudatest: %v: launching a delay of %v: error %d", on, d, code)
		}
		return nil
	}, nil
}
