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
	"slices"
	"strings"
	"unsafe"
)

// program is a CUDA source, with the places for the handles of its functions.
type program struct {
	name, text string
	parts      []part // what the source is limited to; nothing for all of it
	functions  map[string]*C.uintptr_t
}

// part is a part of a source: the functions whose names contain mark. The source has no others if
// macro is defined as value.
type part struct {
	macro string
	value int
	mark  string
}

// byType and byHead are the parts of a source by floating-point type and by head size.
var byType, byHead = func() (types, heads []part) {
	for _, dt := range operands {
		types = append(types, part{"ONLY_TYPE", int(dt), "_" + dt.String()})
	}
	for _, size := range mmaSizes {
		heads = append(heads, part{"ONLY_HEAD", size, fmt.Sprintf("_%d_", size)})
	}
	return types, heads
}()

// split splits a program into its parts that have functions. NVRTC compiles a program on one core,
// but several programs beside each other.
func (p program) split(parts []part) []program {
	var out []program
	for _, part := range parts {
		of := program{name: p.name, text: p.text, parts: append(slices.Clone(p.parts), part), functions: map[string]*C.uintptr_t{}}
		for name, into := range p.functions {
			if strings.Contains(name, part.mark) {
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
	var defines strings.Builder
	for _, part := range p.parts {
		fmt.Fprintf(&defines, "#define %s %d\n", part.macro, part.value)
	}
	if len(p.parts) > 0 {
		defines.WriteString("#line 1\n")
	}
	return defines.String() + source("prelude.cu") + p.text
}

// String names the program in errors.
func (p program) String() string {
	name := p.name
	for i, part := range p.parts {
		name += []string{" for ", ", "}[min(i, 1)] + strings.Trim(part.mark, "_")
	}
	return name
}

// Compile compiles a CUDA C++ source, with kernels/prelude.cu in front, and returns the CUfunctions
// with the given names. Each name ends in a floating-point type: the source defines the functions by
// prelude.cu's macros, and its types are compiled beside each other. Package internal/backend/nccl
// launches the functions itself. The cache keeps the machine code between runs. Compile loads the
// functions, which may wait for work in flight; they are valid until the device is closed. name
// appears in error messages.
func (d *gpuDevice) Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error) {
	p := program{name: name, text: text, functions: places(functions)}
	if err := d.compile(ctx, p.split(byType)); err != nil {
		return nil, err
	}
	out := make([]uintptr, len(functions))
	for i, f := range functions {
		if out[i] = uintptr(*p.functions[f]); out[i] == 0 {
			return nil, fmt.Errorf("%s: the function %s is of no floating-point type", name, f)
		}
	}
	return out, nil
}

// places returns new places for the handles of functions.
func places(functions []string) map[string]*C.uintptr_t {
	out := map[string]*C.uintptr_t{}
	for _, f := range functions {
		out[f] = new(C.uintptr_t)
	}
	return out
}

// compile opens the compiler and builds programs.
func (d *gpuDevice) compile(ctx context.Context, programs []program) error {
	c, err := openCompiler()
	if err != nil {
		return err
	}
	defer c.close()
	return d.build(ctx, c, programs)
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
