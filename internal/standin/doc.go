// Package standin is a GPU and the libraries of one for tests on machines that have
// neither: libcuda, libnccl, libcublasLt and libnvrtc with the real ones' ABI, in C, on
// the host's memory, that can be told to delay, to fail and to hang. They prove how
// this project calls and gives up on the libraries, and what its kernels compute;
// nothing about the libraries, about races between a kernel's threads or about accesses
// out of bounds. Only tests import it.
//
// [Libraries] builds them, [Control] makes them fail; src/*.c say in which ways. The
// stand-in libnvrtc compiles a kernel's source with the host's C++ compiler, behind
// src/cuda.h. [Open] makes a device on the stand-in libcuda, without kernels;
// device/cuda opens one with all of them.
package standin
