//go:build cgo && linux

package nccl

// #include "abi.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// oldest is the first release that has every function used here. ncclMemAlloc was added last.
const oldest Version = 21901

// library is libnccl, for use on one device.
type library struct {
	path    string
	version Version
	nccl    *C.nccl   // function table in C memory, because every C call takes it
	driver  *C.driver // function table of the device's libcuda
	ctx     C.uintptr_t
	dev     cudaDevice
}

// openLibrary opens libnccl for use on dev. The function tables are never freed, because a thread abandoned in C
// may still use them.
func openLibrary(dev cudaDevice) (*library, error) {
	found, err := dl.Open(dl.NVIDIA("NCCL", jobenv.LibNCCLVar, "libnccl.so.2", "libnccl.so"))
	if err != nil {
		return nil, err
	}
	l := &library{
		path: found.String(), ctx: C.uintptr_t(dev.Context()), dev: dev,
		nccl: (*C.nccl)(C.calloc(1, C.sizeof_nccl)), driver: (*C.driver)(C.calloc(1, C.sizeof_driver)),
	}
	for i := range C.int(C.nccl_count) {
		symbol := C.GoString(C.nccl_symbol(i))
		f, err := found.Lookup(symbol)
		if err != nil && l.version != 0 { // the first symbol is ncclGetVersion
			return nil, fmt.Errorf("%w (%w)", &VersionError{Feature: symbol, Have: l.version, Need: oldest, Path: l.path}, err)
		}
		if err != nil {
			return nil, err
		}
		C.nccl_set(l.nccl, i, f)
		if l.version == 0 {
			if err := l.readVersion(); err != nil {
				return nil, err
			}
		}
	}
	for i := range C.int(C.driver_count) {
		f, err := dev.Lookup(C.GoString(C.driver_symbol(i)))
		if err != nil {
			return nil, err
		}
		C.driver_set(l.driver, i, f)
	}
	return l, nil
}

func (l *library) readVersion() error {
	var v C.int
	if code := C.nccl_version(l.nccl, &v); code != 0 {
		return fmt.Errorf("ncclGetVersion of %s failed with NCCL error %d", l.path, code)
	}
	l.version = Version(v)
	if l.version < oldest {
		return &VersionError{Feature: "goddp", Have: l.version, Need: oldest, Path: l.path}
	}
	return nil
}

// check returns nil if code is 0, else an [Error] for call. Its Detail is NCCL's last error
// message, which may come from another thread.
func (l *library) check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	e := &Error{Call: call, Code: int(code), Version: l.version}
	if code < 0 {
		e.Name = fmt.Sprintf("CUDA error %d", -code)
	} else {
		e.Name, e.Detail = C.GoString(C.nccl_error_string(l.nccl, code)), C.GoString(C.nccl_last_error(l.nccl))
	}
	return e
}

// busID returns the device's PCI bus id, by which NCCL distinguishes the GPUs of a host.
func (l *library) busID() (string, error) {
	var id [32]C.char
	if err := l.check("cuDeviceGetPCIBusId", C.drv_bus_id(l.driver, l.ctx, &id[0], C.int(len(id)))); err != nil {
		return "", err
	}
	return C.GoString(&id[0]), nil
}

// checkPeer returns an error unless this process sees the device with the given bus id, NVLink connects it to the
// process's device, and both are of one generation that supports NCCL's LL128. NVLink is detected by native
// atomics on the other device's memory, which PCIe does not support.
func (l *library) checkPeer(busID string) error {
	id := C.CString(busID)
	defer C.free(unsafe.Pointer(id))
	var pair C.gpu_pair
	if err := l.check("cuDeviceGetByPCIBusId", C.drv_pair(l.driver, l.ctx, id, &pair)); err != nil {
		return err
	}
	mine, other := int(pair.capability[0]), int(pair.capability[1])
	switch {
	case pair.has_atomics == 0:
		return errors.New("not connected by NVLink")
	case mine != other || mine != 70 && mine != 80 && mine < 90:
		return fmt.Errorf("the GPUs have compute capabilities %d and %d: want 70 or 80 or at least 90, equal on both", mine, other)
	}
	return nil
}

// uniqueID returns the ncclUniqueId of a new communicator.
func (l *library) uniqueID() ([]byte, error) {
	var id C.unique_id
	if err := l.check("ncclGetUniqueId", C.nccl_unique_id(l.nccl, l.driver, l.ctx, &id)); err != nil {
		return nil, err
	}
	return C.GoBytes(unsafe.Pointer(&id), C.unique_id_size), nil
}
