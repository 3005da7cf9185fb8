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
	module, dt, function, words := kernel.Launch(g, args, k.addr)
	key := customKey{module, dt}
	m, ok := k.custom[key]
	if !ok {
		m = k.compileCustom(module.Program(dt))
		k.custom[key] = m
	}
	b, t := g.Blocks, g.Threads
	if m.err != nil || b[0] == 0 {
		return m.err
	}
	return k.launchDeep(k.d.stream(st), m.functions[function], grid{b[0], max(b[1], 1), max(b[2], 1), t[0], max(t[1], 1)}, max(t[2], 1),
		unsafe.Pointer(unsafe.SliceData(words)), uintptr(len(words))*unsafe.Sizeof(words[0]))
}

// compileCustom compiles and loads a device.Module.
func (k *kernelSet) compileCustom(file, text string, functions []string) customModule {
	whole := program{name: file, text: text, functions: places(functions)}
	err := k.d.compile(k.d.life, []program{whole})
	var failed *compileError
	if errors.As(err, &failed) {
		err = &device.CompileError{File: file, Log: failed.log}
	}
	m := customModule{functions: map[string]C.uintptr_t{}, err: err}
	for name, h := range whole.functions {
		m.functions[name] = *h
	}
	return m
}
