// Package standin is a GPU and a libnccl for tests on machines that have
// neither: libraries with the real ones' ABI, in C, on the host's memory, that
// can be told to delay, to fail and to hang. They prove how this project calls
// and gives up on the libraries, and nothing about the libraries. Only tests
// import it.
//
// [Libraries] builds them, [Control] makes them fail; src/libcuda.c and
// src/libnccl.c say in which ways. [Open] makes a device on the stand-in
// libcuda. It has memory, streams and events, and no kernels.
package standin
