//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"unsafe"

	"github.com/goddp/goddp/device"
)

// customKey is a module of a program's own, for a floating-point type.
type customKey struct {
	module *device.Module
	dt     device.DType
}

// customModule is what became of one: its functions, or why there are none.
type customModule struct {
	functions map[*device.Kernel]C.uintptr_t
	err       error
}

func (k *kernels) Launch(st device.Stream, kernel *device.Kernel, g device.Grid, args ...any) error {
	dt := kernel.Check(g, args)
	m, ok := k.custom[customKey{kernel.Module(), dt}]
	if !ok {
		m = k.compileCustom(kernel.Module(), dt)
		k.custom[customKey{kernel.Module(), dt}] = m
	}
	if m.err != nil || g.Blocks[0] == 0 {
		return m.err
	}
	words := kernel.Words(args, k.addr)
	g = g.Whole()
	return k.launchDeep(k.d.stream(st), m.functions[kernel],
		grid{g.Blocks[0], g.Blocks[1], g.Blocks[2], g.Threads[0], g.Threads[1]}, g.Threads[2],
		unsafe.Pointer(unsafe.SliceData(words)), uintptr(len(words))*unsafe.Sizeof(words[0]))
}

// compileCustom compiles and loads a program's module.
func (k *kernels) compileCustom(module *device.Module, dt device.DType) customModule {
	names := make([]string, len(module.Kernels()))
	for i, kernel := range module.Kernels() {
		names[i] = kernel.Entry()
	}
	handles, err := k.d.Compile(context.Background(), module.File(), module.Program(dt), names...)
	var failed *compileError
	if errors.As(err, &failed) {
		err = &device.CompileError{File: module.File(), Log: failed.log}
	}
	m := customModule{functions: map[*device.Kernel]C.uintptr_t{}, err: err}
	for i, h := range handles {
		m.functions[module.Kernels()[i]] = C.uintptr_t(h)
	}
	return m
}
