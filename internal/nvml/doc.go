// Package nvml reads the state of a host's GPUs by NVML, NVIDIA's management library, which comes
// with the driver. It opens the library at run time (GODDP_LIBNVML names it, or the loader's path is
// searched) and makes no CUDA context, so reading disturbs nobody.
//
// NVML lists all GPUs of the host: it ignores CUDA_VISIBLE_DEVICES. The PCI bus id, which CUDA knows
// too, tells which of CUDA's devices a GPU is.
package nvml
