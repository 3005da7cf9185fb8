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
	parts      []part // if not empty, the program contains only these parts
	functions  map[string]*C.uintptr_t
}

// part is a subset of a source's functions: those compiled if macro is defined as value.
type part struct {
	macro string
	value int
	label string // names the part in errors
	has   func(function string) bool
}

// typeParts returns a part for each floating-point type. A part has the functions whose names end in its
// type.
func typeParts() []part {
	var out []part
	for _, dt := range operands {
		has := func(function string) bool { return strings.HasSuffix(function, "_"+dt.String()) }
		out = append(out, part{macro: "ONLY_TYPE", value: int(dt), label: dt.String(), has: has})
	}
	return out
}

// headParts returns a part of attention_mma.cu for each head size.
func headParts() []part {
	var out []part
	for _, size := range mmaSizes {
		has := func(function string) bool { return strings.Contains(function, fmt.Sprintf("_%d_", size)) }
		out = append(out, part{macro: "ONLY_HEAD", value: size, label: fmt.Sprint("head size ", size), has: has})
	}
	return out
}

// split returns one program per non-empty part. NVRTC compiles a program on one core, and several
// programs in parallel.
func (p program) split(parts []part) []program {
	var out []program
	for _, only := range parts {
		limited := program{name: p.name, text: p.text, parts: append(slices.Clone(p.parts), only), functions: map[string]*C.uintptr_t{}}
		for f, into := range p.functions {
			if only.has(f) {
				limited.functions[f] = into
			}
		}
		if len(limited.functions) > 0 {
			out = append(out, limited)
		}
	}
	return out
}

// withPrelude returns the program's text as NVRTC gets it.
func (p program) withPrelude() string {
	var defines strings.Builder
	for _, only := range p.parts {
		fmt.Fprintf(&defines, "#define %s %d\n", only.macro, only.value)
	}
	if len(p.parts) > 0 {
		defines.WriteString("#line 1\n")
	}
	return defines.String() + source("prelude.cu") + p.text
}

// String names the program in errors.
func (p program) String() string {
	name, before := p.name, " for "
	for _, only := range p.parts {
		name += before + only.label
		before = ", "
	}
	return name
}

// Compile compiles a CUDA C++ source, with kernels/prelude.cu in front, and returns the CUfunctions
// with the given names. Package comm/internal/nccl launches them itself.
//
// The source defines its functions with prelude.cu's macros for types, so each name ends in a
// floating-point type. Compile compiles the source once for each of these types, in parallel. It
// returns an error if a name does not end in such a type.
//
// The cache keeps the machine code between runs. Loading the functions may wait for work in flight on
// the GPU. The functions are valid until the device is closed. name appears in error messages.
func (d *gpuDevice) Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error) {
	types := typeParts()
	for _, f := range functions {
		if !slices.ContainsFunc(types, func(p part) bool { return p.has(f) }) {
			return nil, fmt.Errorf("%s: function %s: want a name that ends in a floating-point type", name, f)
		}
	}
	p := program{name: name, text: text, functions: places(functions)}
	if err := d.compile(ctx, p.split(types)); err != nil {
		return nil, err
	}
	out := make([]uintptr, len(functions))
	for i, f := range functions {
		out[i] = uintptr(*p.functions[f])
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
