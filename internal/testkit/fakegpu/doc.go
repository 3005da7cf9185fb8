// Package fakegpu replaces NVIDIA's libraries in tests on machines without a GPU. It has fake
// versions of libcuda, libnccl, libcublasLt, libcudnn, libnvrtc, libcupti and libnvml, written in C
// with the ABI of the real ones. They work on host memory, and a test can make them delay, fail or
// hang. Tests with them check how this project calls the libraries and aborts calls, and what its
// kernels compute. They do not check the real libraries, races between the threads of a kernel, or
// accesses out of bounds. Only tests import the package.
//
// [Libraries] builds the libraries. [Control] sets faults; src/*.c list them. The fake libnvrtc
// compiles a kernel's source with the host's C++ compiler and src/cuda.h. [Open] opens a device on
// the fake libcuda, without kernels; device/cuda opens one with all its kernels.
package fakegpu
