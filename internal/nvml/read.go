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

// library is NVML, initialized.
type library struct{ fns *C.nvml }

// open opens NVML. The error is a *dl.NotFoundError if there is none.
func open() (_ *library, err error) {
	lib, err := dl.Open(dl.NVIDIA("NVML, which comes with NVIDIA's driver,", jobenv.LibNVMLVar, "libnvidia-ml.so.1", "libnvidia-ml.so"))
	if err != nil {
		return nil, err
	}
	fns := (*C.nvml)(C.calloc(1, C.sizeof_nvml))
	defer func() {
		if err != nil {
			C.free(unsafe.Pointer(fns))
		}
	}()
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
	return &library{fns}, nil
}

func (l *library) close() {
	C.nvml_shutdown(l.fns)
	C.free(unsafe.Pointer(l.fns))
}

// state reads the state of a GPU.
func (l *library) state(d C.nvml_device) (State, error) {
	var s C.nvml_state
	if err := check("nvmlDeviceGetClockInfo", C.nvml_read_state(l.fns, d, &s)); err != nil {
		return State{}, err
	}
	return State{
		Clock: int(s.clock), MaxClock: int(s.max_clock), Slowdowns: Slowdowns(s.slowdowns), Temperature: int(s.temperature),
		Power: float64(s.power) / 1e3, PowerLimit: float64(s.power_limit) / 1e3, ECCErrors: uint64(s.ecc_errors), NVLinks: int(s.nvlinks),
	}, nil
}

// A Monitor reads the state of one GPU again and again. Only one goroutine may use it.
type Monitor struct {
	lib    *library
	device C.nvml_device
}

// Watch returns the monitor of the GPU with a bus id.
func Watch(busID string) (*Monitor, error) {
	lib, err := open()
	if err != nil {
		return nil, err
	}
	m := &Monitor{lib: lib}
	id := C.CString(busID)
	defer C.free(unsafe.Pointer(id))
	if err := check("nvmlDeviceGetHandleByPciBusId "+busID, C.nvml_find_bus_id(lib.fns, id, &m.device)); err != nil {
		lib.close()
		return nil, err
	}
	return m, nil
}

// Read reads the state. It takes about a millisecond, unless the GPU is broken.
func (m *Monitor) Read() (State, error) { return m.lib.state(m.device) }

// Close ends the monitor.
func (m *Monitor) Close() { m.lib.close() }

// Read reads the state of all GPUs of the host. The error is a *dl.NotFoundError if there is no NVML.
func Read() (*Host, error) {
	lib, err := open()
	if err != nil {
		return nil, err
	}
	defer lib.close()
	var driver [96]C.char
	if err := check("nvmlSystemGetDriverVersion", C.nvml_driver(lib.fns, &driver[0], C.uint(len(driver)))); err != nil {
		return nil, err
	}
	var count C.uint
	if err := check("nvmlDeviceGetCount", C.nvml_count(lib.fns, &count)); err != nil {
		return nil, err
	}
	host := &Host{Driver: C.GoString(&driver[0])}
	devices := make([]C.nvml_device, count)
	for i := range count {
		g, err := lib.read(i, &devices[i])
		if err != nil {
			return nil, fmt.Errorf("reading GPU %d by NVML: %w", i, err)
		}
		host.GPUs = append(host.GPUs, g)
	}
	for i, from := range devices {
		for j, to := range devices {
			if i != j && C.nvml_blocked(lib.fns, from, to) != 0 {
				host.GPUs[i].BlockedPeers = append(host.GPUs[i].BlockedPeers, host.GPUs[j].BusID)
			}
		}
	}
	return host, nil
}

// read reads a GPU, except its blocked peers, and sets d to its handle.
func (l *library) read(index C.uint, d *C.nvml_device) (g GPU, err error) {
	if err := check("nvmlDeviceGetHandleByIndex", C.nvml_find(l.fns, index, d)); err != nil {
		return g, err
	}
	var name [96]C.char
	var pci C.nvml_pci
	if err := check("nvmlDeviceGetName", C.nvml_read_name(l.fns, *d, &name[0], C.uint(len(name)), &pci)); err != nil {
		return g, err
	}
	g.Name, g.BusID = C.GoString(&name[0]), busID(C.GoString(&pci.id[0]))
	g.Utilization, g.Processes = int(C.nvml_read_utilization(l.fns, *d)), int(C.nvml_count_processes(l.fns, *d))
	g.State, err = l.state(*d)
	return g, err
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
