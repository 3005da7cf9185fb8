// Package fakegpu replaces NVIDIA's libraries for tests on machines without a GPU. It has
// libcuda, libnccl, libcublasLt and libnvrtc, written in C with the ABI of the real ones.
// They work on the host's memory, and a test can tell them to delay, to fail or to hang.
// Tests with them show how this project calls the libraries and aborts calls, and what
// its kernels compute. They show nothing about the real libraries, about races between a
// kernel's threads or about accesses out of bounds. Only tests import the package.
//
// [Libraries] builds them, [Control] makes them fail; src/*.c say in which ways. The
// stand-in libnvrtc compiles a kernel's source with the host's C++ compiler, behind
// src/cuda.h. [Open] makes a device on the stand-in libcuda, without kernels;
// device/cuda opens one with all of them.
package fakegpu
