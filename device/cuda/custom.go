//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/goddp/goddp/device"
)

// customKey identifies a device.Module compiled for one floating-point type.
type customKey struct {
	module *device.Module
	dt     device.DType
}

// customModule is a loaded device.Module: its functions by name, or the error that prevented
// loading.
type customModule struct {
	functions map[string]C.uintptr_t
	err       error
}

func (k *kernelSet) Launch(st device.Stream, kernel *device.Kernel, g device.Grid, args ...any) error {
	l := kernel.Launch(g, args, k.addr)
	key := customKey{l.Module, l.DType}
	m, ok := k.custom[key]
	if !ok {
		m = k.compileCustom(l.Module.Program(l.DType))
		k.custom[key] = m
	}
	if m.err != nil || l.Grid.Blocks[0] == 0 {
		return m.err
	}
	b, t := l.Grid.Blocks, l.Grid.Threads
	return k.launchDeep(k.d.stream(st), m.functions[l.Function], grid{b[0], b[1], b[2], t[0], t[1]}, t[2],
		unsafe.Pointer(unsafe.SliceData(l.Arguments)), uintptr(len(l.Arguments))*unsafe.Sizeof(l.Arguments[0]))
}

// compileCustom compiles and loads a device.Module.
func (k *kernelSet) compileCustom(p device.Program) customModule {
	whole := program{name: p.File, text: p.Text, functions: places(p.Functions)}
	err := k.d.compile(k.d.life, []program{whole})
	var failed *compileError
	if errors.As(err, &failed) {
		err = &device.CompileError{File: p.File, Log: failed.log}
	}
	m := customModule{functions: map[string]C.uintptr_t{}, err: err}
	for name, h := range whole.functions {
		m.functions[name] = *h
	}
	return m
}
