//go:build cgo && linux

package doctor

/*
#include <stddef.h>

static int call_int(void *f, int *v) { return ((int (*)(int *))f)(v); }
static int call_two(void *f, int *a, int *b) { return ((int (*)(int *, int *))f)(a, b); }
static size_t call_size(void *f) { return ((size_t (*)(void))f)(); }
static const char *call_text(void *f) { return ((const char *(*)(void))f)(); }
static const int *call_ints(void *f) { return ((const int *(*)(void))f)(); }
static int call_init(void *f, unsigned flags) { return ((int (*)(unsigned))f)(flags); }
static int call_bus_id(void *f, char *id, int size, int dev) { return ((int (*)(char *, int, int))f)(id, size, dev); }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// These are the oldest versions that this module's packages accept: NCCL 2.19.1 and cuDNN 9.10.2.
const (
	oldestNCCL  = 21901
	oldestCuDNN = 91002
)

// readLibraries opens the libraries that a rank uses. It sets their versions, the bus ids of the GPUs that the rank
// sees, and the bus id of the rank's GPU. If GODDP_DEVICE is cpu, or the host has no GPU and GODDP_DEVICE does not
// select one, there are no bus ids, and the list of libraries contains only OpenBLAS and oneDNN.
func (f *Facts) readLibraries(localRank int) {
	blas := version("OpenBLAS", dl.OpenBLAS(jobenv.OpenBLASVar),
		"openblas_get_config", func(f unsafe.Pointer) (string, error) {
			words := strings.Fields(C.GoString(C.call_text(f))) // "OpenBLAS 0.3.21 DYNAMIC_ARCH ..."
			if len(words) < 2 {
				return "", fmt.Errorf("openblas_get_config returned %q, want the version as its second word", words)
			}
			return words[1], nil
		})
	kind, _, _ := strings.Cut(os.Getenv(jobenv.DeviceVar), ":")
	f.Libraries = []Library{blas}
	if runtime.GOARCH == "amd64" && os.Getenv(jobenv.OneDNNVar) != "none" {
		f.Libraries = append(f.Libraries, version("oneDNN", dl.OneDNN(jobenv.OneDNNVar), "dnnl_version", func(f unsafe.Pointer) (string, error) {
			v := unsafe.Slice(C.call_ints(f), 3)
			return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]), nil
		}))
	}
	if kind == "cpu" {
		return
	}
	wantsGPU := kind == "cuda" || hasGPU()
	cuda, lib := openCUDA()
	switch {
	case lib == nil && !wantsGPU:
		return
	case lib == nil:
		f.Libraries = append(f.Libraries, cuda)
		return
	}
	visible, err := busIDs(lib)
	f.VisibleGPUs = visible
	switch n := ordinal(localRank); {
	case err != nil:
		cuda.Error = err.Error()
	case n < len(visible):
		f.GPU = visible[n]
	case len(visible) > 0:
		f.GPUError = fmt.Sprintf("it wants GPU %d, counted from 0, but sees %s", n, count(len(visible), "GPU"))
	case wantsGPU:
		f.GPUError = "the driver finds no GPU, and " + jobenv.DeviceVar + " or the kernel says that there is one"
	default:
		return
	}
	f.Libraries = append(f.Libraries, cuda,
		version("NCCL", dl.NVIDIA("NCCL", jobenv.LibNCCLVar, "libnccl.so.2", "libnccl.so"), "ncclGetVersion", ncclVersion),
		version("cuBLASLt", dl.NVIDIA("libcublasLt", jobenv.LibCUBLASLtVar, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"),
			"cublasLtGetVersion", func(f unsafe.Pointer) (string, error) {
				v := int(C.call_size(f))
				return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100), nil
			}),
		version("NVRTC", dl.NVIDIA("libnvrtc", jobenv.LibNVRTCVar, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"),
			"nvrtcVersion", func(f unsafe.Pointer) (string, error) {
				var major, minor C.int
				if code := C.call_two(f, &major, &minor); code != 0 {
					return "", fmt.Errorf("nvrtcVersion failed with error %d", code)
				}
				return fmt.Sprintf("%d.%d", major, minor), nil
			}))
	if os.Getenv(jobenv.LibCUDNNVar) != "none" {
		f.Libraries = append(f.Libraries, version("cuDNN", dl.NVIDIA("libcudnn", jobenv.LibCUDNNVar, "libcudnn.so.9"), "cudnnGetVersion", cudnnVersion))
	}
}

// ordinal returns the number of a local rank's GPU, as package comm chooses it.
func ordinal(localRank int) int {
	_, number, ok := strings.Cut(os.Getenv(jobenv.DeviceVar), ":")
	if n, err := strconv.Atoi(number); ok && err == nil {
		return n
	}
	return localRank
}

// hasGPU reports whether the kernel has an NVIDIA GPU, whether or not its driver works.
func hasGPU() bool { return len(names("/proc/driver/nvidia/gpus/*")) > 0 }

// openCUDA opens the driver's library. The library is nil if it was not found.
func openCUDA() (Library, *dl.Library) {
	lib, err := dl.Open(dl.NVIDIA("libcuda, which comes with NVIDIA's driver,", jobenv.LibCUDAVar, "libcuda.so.1", "libcuda.so"))
	if err != nil {
		return Library{Name: "libcuda", Error: err.Error()}, nil
	}
	l := Library{Name: "libcuda", Path: lib.String()}
	f, err := lib.Lookup("cuDriverGetVersion")
	var v C.int
	if err == nil && C.call_int(f, &v) == 0 {
		l.Version = fmt.Sprintf("CUDA %d.%d", v/1000, v/10%100)
	}
	if err != nil {
		l.Error = err.Error()
	}
	return l, lib
}

// codeNoDevice is CUDA's code for a host without a GPU.
const codeNoDevice = 100

// busIDs returns the bus ids of the GPUs that this process sees, in CUDA's order.
func busIDs(lib *dl.Library) (ids []string, err error) {
	var start, count, read unsafe.Pointer
	for symbol, f := range map[string]*unsafe.Pointer{"cuInit": &start, "cuDeviceGetCount": &count, "cuDeviceGetPCIBusId": &read} {
		if *f, err = lib.Lookup(symbol); err != nil {
			return nil, err
		}
	}
	switch code := C.call_init(start, 0); code {
	case 0:
	case codeNoDevice:
		return nil, nil
	default:
		return nil, fmt.Errorf("cuInit failed with CUDA error %d", code)
	}
	var n C.int
	if code := C.call_int(count, &n); code != 0 {
		return nil, fmt.Errorf("cuDeviceGetCount failed with CUDA error %d", code)
	}
	for i := range n {
		var id [32]C.char
		if code := C.call_bus_id(read, &id[0], C.int(len(id)), i); code != 0 {
			return nil, fmt.Errorf("cuDeviceGetPCIBusId of GPU %d failed with CUDA error %d", i, code)
		}
		ids = append(ids, strings.ToUpper(C.GoString(&id[0])))
	}
	return ids, nil
}

// ncclVersion reads NCCL's version. It returns the version also with the error that NCCL is too old.
func ncclVersion(f unsafe.Pointer) (string, error) {
	var v C.int
	if code := C.call_int(f, &v); code != 0 {
		return "", fmt.Errorf("ncclGetVersion failed with NCCL error %d", code)
	}
	text := fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
	if v < oldestNCCL {
		return text, errors.New("NCCL is " + text + ", want 2.19.1 or newer")
	}
	return text, nil
}

// cudnnVersion reads cuDNN's version, like ncclVersion.
func cudnnVersion(f unsafe.Pointer) (string, error) {
	v := int(C.call_size(f))
	text := fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
	if v < oldestCuDNN {
		return text, errors.New("cuDNN is " + text + ", want 9.10.2 or newer")
	}
	return text, nil
}

// version opens a library and reads its version by a function of it.
func version(name string, s dl.Search, symbol string, read func(unsafe.Pointer) (string, error)) Library {
	lib, err := dl.Open(s)
	if err != nil {
		return Library{Name: name, Error: err.Error()}
	}
	l := Library{Name: name, Path: lib.String()}
	f, err := lib.Lookup(symbol)
	if err == nil {
		l.Version, err = read(f)
	}
	if err != nil {
		l.Error = err.Error()
	}
	return l
}
