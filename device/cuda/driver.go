//go:build cgo && linux

package cuda

// #include "driver.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// These driver codes are not failures.
const (
	codeOutOfMemory = 2
	codeNotReady    = 600
)

// These are attributes of a device.
const (
	attrMultiprocessors = 16
	attrMajor           = 75
	attrMinor           = 76
)

// driver is the library libcuda.
type driver struct {
	lib *dl.Library
	fns *C.driver // in C's memory, because every call passes the table
}

// openDriver loads and initializes libcuda.
func openDriver() (*driver, error) {
	lib, err := dl.Open(dl.NVIDIA("libcuda, which comes with NVIDIA's driver,", jobenv.LibCUDAVar, "libcuda.so.1", "libcuda.so"))
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	d := &driver{lib, (*C.driver)(C.calloc(1, C.sizeof_driver))}
	err = fill(lib, int(C.driver_count()),
		func(i int) string { return C.GoString(C.driver_symbol(C.int(i))) },
		func(i int, f unsafe.Pointer) { C.driver_set(d.fns, C.int(i), f) })
	if err == nil {
		err = d.check("", "cuInit", C.drv_init(d.fns))
	}
	if err != nil {
		d.free()
		return nil, err
	}
	return d, nil
}

// fill looks up the n symbols of a function table.
func fill(lib *dl.Library, n int, symbol func(int) string, set func(int, unsafe.Pointer)) error {
	for i := range n {
		f, err := lib.Lookup(symbol(i))
		if err != nil {
			return fmt.Errorf("cuda: %w", err)
		}
		set(i, f)
	}
	return nil
}

// free frees the function table. The library stays loaded.
func (d *driver) free() {
	C.free(unsafe.Pointer(d.fns))
	d.fns = nil
}

// check converts the code that a call returned into an error.
func (d *driver) check(device, call string, code C.int) error {
	if code == 0 {
		return nil
	}
	e := &Error{Device: device, Call: call, Code: int(code), Name: "unknown error", Text: C.GoString(C.drv_error_text(d.fns, code))}
	if name := C.drv_error_name(d.fns, code); name != nil {
		e.Name = C.GoString(name)
	}
	return e
}

// count returns the number of GPUs.
func (d *driver) count() (int, error) {
	var n C.int
	err := d.check("", "cuDeviceGetCount", C.drv_device_count(d.fns, &n))
	return int(n), err
}

func count() (int, error) {
	d, err := openDriver()
	if err != nil {
		return 0, err
	}
	defer d.free()
	return d.count()
}

// properties describes a GPU.
type properties struct {
	handle       C.int
	name         string
	busID        string // on PCI, in capitals: "0000:3B:00.0"
	major, minor int    // the compute capability
	sms          int    // the number of multiprocessors
	driver       int    // the newest CUDA version that the driver supports: 13000 means 13.0
}

// oldest is the minimum major compute capability, that of Ampere. Older GPUs lack the conversions
// of bfloat16.
const oldest = 8

// properties returns the properties of the GPU with an ordinal.
func (d *driver) properties(ordinal int) (*properties, error) {
	n, err := d.count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("cuda: no device %d: the driver reports %d devices", ordinal, n)
	}
	c := &properties{}
	name := fmt.Sprintf("cuda:%d", ordinal)
	if err := d.check(name, "cuDeviceGet", C.drv_device(d.fns, &c.handle, C.int(ordinal))); err != nil {
		return nil, err
	}
	for _, a := range []struct {
		into  *int
		which C.int
	}{{&c.major, attrMajor}, {&c.minor, attrMinor}, {&c.sms, attrMultiprocessors}} {
		var v C.int
		if err := d.check(name, "cuDeviceGetAttribute", C.drv_attribute(d.fns, &v, a.which, c.handle)); err != nil {
			return nil, err
		}
		*a.into = int(v)
	}
	var version C.int
	if err := d.check(name, "cuDriverGetVersion", C.drv_version(d.fns, &version)); err != nil {
		return nil, err
	}
	c.driver = int(version)
	var text [256]C.char
	if err := d.check(name, "cuDeviceGetName", C.drv_device_name(d.fns, &text[0], C.int(len(text)), c.handle)); err != nil {
		return nil, err
	}
	c.name = C.GoString(&text[0])
	if err := d.check(name, "cuDeviceGetPCIBusId", C.drv_bus_id(d.fns, &text[0], C.int(len(text)), c.handle)); err != nil {
		return nil, err
	}
	c.busID = strings.ToUpper(C.GoString(&text[0]))
	if c.major < oldest {
		return nil, fmt.Errorf("%s is a %s of compute capability %d.%d, want %d.0 or newer", name, c.name, c.major, c.minor, oldest)
	}
	return c, nil
}

// arch returns the compiler's name of the GPU's architecture.
func (c *properties) arch() string { return fmt.Sprintf("sm_%d%d", c.major, c.minor) }
