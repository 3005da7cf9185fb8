//go:build cgo && linux

package cuda

// #include "driver.h"
// #include <stdlib.h>
import "C"

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/goddp/goddp/device"
)

// program is a CUDA source, with the places for the handles of its functions.
type program struct {
	name, text string
	only       device.DType // the floating-point type that the source is compiled for; Invalid for all
	functions  map[string]*C.uintptr_t
}

// split splits a program, whose functions all end in the name of their floating-point type, into
// programs for one type each.
func (p program) split() []program {
	var out []program
	for _, dt := range operands {
		of := program{name: p.name, text: p.text, only: dt, functions: map[string]*C.uintptr_t{}}
		for name, into := range p.functions {
			if strings.HasSuffix(name, "_"+dt.String()) {
				of.functions[name] = into
			}
		}
		if len(of.functions) > 0 {
			out = append(out, of)
		}
	}
	return out
}

// withPrelude returns the program's text as NVRTC gets it.
func (p program) withPrelude() string {
	text := source("prelude.cu") + p.text
	if p.only != device.Invalid {
		text = fmt.Sprintf("#define ONLY %d\n#line 1\n", p.only) + text
	}
	return text
}

// String names the program in errors.
func (p program) String() string {
	if p.only == device.Invalid {
		return p.name
	}
	return fmt.Sprintf("%s for %v", p.name, p.only)
}

// Compile compiles a CUDA C++ source, with kernels/prelude.cu in front, and returns the CUfunctions
// with the given names. Package internal/backend/nccl launches them itself. The cache keeps the
// machine code between runs. Compile loads the functions, which may wait for work in flight; they
// are valid until the device is closed. name appears in error messages.
func (d *gpuDevice) Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error) {
	c, err := openCompiler()
	if err != nil {
		return nil, err
	}
	defer c.close()
	handles, into := make([]C.uintptr_t, len(functions)), map[string]*C.uintptr_t{}
	for i, f := range functions {
		into[f] = &handles[i]
	}
	if err := d.build(ctx, c, []program{{name: name, text: text, functions: into}}); err != nil {
		return nil, err
	}
	out := make([]uintptr, len(handles))
	for i, h := range handles {
		out[i] = uintptr(h)
	}
	return out, nil
}

// build compiles the programs that are not in the cache, and loads all programs.
func (d *gpuDevice) build(ctx context.Context, c *compiler, programs []program) error {
	images, err := openCache(d.cache, d.log).get(ctx, c.entries(programs, d.props.arch()))
	if err != nil {
		return fmt.Errorf("%s: compiling kernels: %w", d.name, err)
	}
	for i, p := range programs {
		if err := d.load(images[i], p.functions); err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
	}
	return nil
}

// entries returns the cache entries for the machine code of programs. The key of an entry is a hash
// of everything that the machine code depends on.
func (c *compiler) entries(programs []program, arch string) []entry {
	options := []string{"--gpu-architecture=" + arch, "--std=c++17", "--generate-line-info"}
	out := make([]entry, len(programs))
	for i, p := range programs {
		key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", c.version, options, p.withPrelude()))
		out[i] = entry{fmt.Sprintf("%x.cubin", key), func() ([]byte, error) { return c.compile(p, options) }}
	}
	return out
}

// load loads a module and sets the handles of its functions.
func (d *gpuDevice) load(image []byte, functions map[string]*C.uintptr_t) error {
	p := C.CBytes(image)
	defer C.free(p)
	var m C.uintptr_t
	if err := d.check("cuModuleLoadData", C.drv_module_load(d.drv.fns, d.ctx, &m, p)); err != nil {
		return err
	}
	d.mu.Lock()
	d.modules = append(d.modules, m)
	d.mu.Unlock()
	for name, into := range functions {
		cname := C.CString(name)
		var f C.uintptr_t
		err := d.check("cuModuleGetFunction", C.drv_function(d.drv.fns, d.ctx, &f, m, cname))
		C.free(unsafe.Pointer(cname))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*into = f
	}
	return nil
}

// unload unloads all modules. The device must be idle.
func (d *gpuDevice) unload() error {
	var errs []error
	for _, m := range d.modules {
		errs = append(errs, d.check("cuModuleUnload", C.drv_module_unload(d.drv.fns, d.ctx, m)))
	}
	return errors.Join(errs...)
}
