//go:build cgo && linux

package cuda

// #include "rtc.h"
import "C"

import (
	"fmt"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// compiler is the library libnvrtc.
type compiler struct {
	lib     *dl.Library
	fns     *C.nvrtc // in C's memory
	version string   // "13.0"
}

// openCompiler loads libnvrtc.
func openCompiler() (*compiler, error) {
	lib, err := dl.Open(dl.NVIDIA("libnvrtc, CUDA's compiler,", jobenv.LibNVRTCVar, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"))
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	c := &compiler{lib: lib, fns: (*C.nvrtc)(C.calloc(1, C.sizeof_nvrtc))}
	err = fill(lib, int(C.nvrtc_count()),
		func(i int) string { return C.GoString(C.nvrtc_symbol(C.int(i))) },
		func(i int, f unsafe.Pointer) { C.nvrtc_set(c.fns, C.int(i), f) })
	if err == nil {
		var major, minor C.int
		err = c.check("nvrtcVersion", C.nvrtc_version(c.fns, &major, &minor))
		c.version = fmt.Sprintf("%d.%d", major, minor)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	c.openBuiltins()
	return c, nil
}

// openBuiltins preloads libnvrtc-builtins from NVRTC's folder. NVRTC later opens that library by
// its bare name, and so gets the matching version. If it is not in the folder, NVRTC searches for
// it.
func (c *compiler) openBuiltins() {
	path := C.nvrtc_path(c.fns)
	if path == nil {
		return
	}
	file, err := filepath.EvalSymlinks(C.GoString(path))
	if err != nil {
		return
	}
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "libnvrtc-builtins.so."+c.version+"*")) // the error is nil, because the pattern is well formed
	if len(found) > 0 {
		dl.Open(dl.Search{Name: "libnvrtc-builtins", Files: found})
	}
}

func (c *compiler) String() string { return fmt.Sprintf("%v (%s)", c.lib, c.version) }

func (c *compiler) close() { C.free(unsafe.Pointer(c.fns)) }

func (c *compiler) check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: call, Code: int(code), Name: C.GoString(C.nvrtc_error_name(c.fns, code))}
}

// compile compiles a program to machine code. If the source does not compile, the error is a
// compileError.
func (c *compiler) compile(p program, options []string) ([]byte, error) {
	var frees []unsafe.Pointer
	defer func() {
		for _, f := range frees {
			C.free(f)
		}
	}()
	cstring := func(s string) *C.char {
		text := C.CString(s)
		frees = append(frees, unsafe.Pointer(text))
		return text
	}
	list := (*[1 << 10]*C.char)(C.calloc(C.size_t(len(options)), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	frees = append(frees, unsafe.Pointer(list))
	for i, o := range options {
		list[i] = cstring(o)
	}
	var code, log *C.char
	var size C.size_t
	err := c.check("nvrtcCompileProgram", C.nvrtc_compile(c.fns, cstring(p.withPrelude()), cstring(p.name),
		C.int(len(options)), &list[0], &code, &size, &log))
	frees = append(frees, unsafe.Pointer(code), unsafe.Pointer(log))
	if err != nil {
		return nil, &compileError{p.String(), err, strings.TrimSpace(C.GoString(log))}
	}
	return C.GoBytes(unsafe.Pointer(code), C.int(size)), nil
}

// compileError reports a source that does not compile.
type compileError struct {
	name string
	err  error
	log  string // the compiler's output
}

func (e *compileError) Error() string { return fmt.Sprintf("%s: %v\n%s", e.name, e.err, e.log) }
func (e *compileError) Unwrap() error { return e.err }
