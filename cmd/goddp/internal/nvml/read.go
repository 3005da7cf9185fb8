//go:build cgo && linux

package nvml

// #include "nvml.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// Read reads the state of all GPUs of the host. The error is a *dl.NotFoundError if there is no NVML.
func Read() (*Host, error) {
	lib, err := dl.Open(dl.NVIDIA("NVML, which comes with NVIDIA's driver,", jobenv.LibNVMLVar, "libnvidia-ml.so.1", "libnvidia-ml.so"))
	if err != nil {
		return nil, err
	}
	fns := (*C.nvml)(C.calloc(1, C.sizeof_nvml))
	defer C.free(unsafe.Pointer(fns))
	for i := range C.int(C.NVML_FUNCTION_COUNT) {
		f, err := lib.Lookup(C.GoString(C.nvml_symbol(i)))
		if err != nil {
			return nil, err
		}
		C.nvml_set(fns, i, f)
	}
	if err := check("nvmlInit", C.nvml_init(fns)); err != nil {
		return nil, err
	}
	defer C.nvml_shutdown(fns)
	var driver [96]C.char
	if err := check("nvmlSystemGetDriverVersion", C.nvml_driver(fns, &driver[0], C.uint(len(driver)))); err != nil {
		return nil, err
	}
	var count C.uint
	if err := check("nvmlDeviceGetCount", C.nvml_count(fns, &count)); err != nil {
		return nil, err
	}
	host := &Host{Driver: C.GoString(&driver[0])}
	for i := range count {
		var g C.nvml_gpu
		if err := check(fmt.Sprintf("reading GPU %d by NVML", i), C.nvml_read(fns, i, &g)); err != nil {
			return nil, err
		}
		host.GPUs = append(host.GPUs, GPU{
			Name: C.GoString(&g.name[0]), BusID: busID(C.GoString(&g.pci.id[0])),
			Clock: int(g.clock), MaxClock: int(g.max_clock), Slowdowns: slowdowns(uint64(g.slowdowns)),
			ECCErrors: uint64(g.ecc_errors), Utilization: int(g.utilization.gpu), Processes: int(g.processes), NVLinks: int(g.nvlinks),
		})
	}
	for i := range count {
		for j := range count {
			if i != j && C.nvml_blocked(fns, i, j) != 0 {
				host.GPUs[i].BlockedPeers = append(host.GPUs[i].BlockedPeers, host.GPUs[j].BusID)
			}
		}
	}
	return host, nil
}

// busID converts NVML's form of a bus id, with a domain of eight digits, to CUDA's with four.
func busID(id string) string {
	id = strings.ToUpper(id)
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return id
}

// check converts a result of NVML to an error.
func check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s failed with NVML error %d", call, int(code))
}
