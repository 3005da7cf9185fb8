// cuda.h for gorgonia.org/cu v0.9.6, which calls some functions as they were
// before CUDA 13 gave their names to new versions with other parameters. The
// driver still has the old ones, under the names below. To be found before the
// toolkit's own header, which it includes; with CUDA 11 and 12 it adds nothing.
#ifndef GODDP_COMPAT_CUDA_H
#define GODDP_COMPAT_CUDA_H

#include_next <cuda.h>

#if CUDA_VERSION >= 13000

#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned int flags, CUdevice);

#undef cuMemAdvise
CUresult CUDAAPI cuMemAdvise(CUdeviceptr, size_t count, CUmem_advise, CUdevice);

#undef cuMemPrefetchAsync
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr, size_t count, CUdevice, CUstream);

#undef cuGraphAddDependencies
CUresult CUDAAPI cuGraphAddDependencies(CUgraph, const CUgraphNode *from, const CUgraphNode *to, size_t count);

#undef cuGraphGetEdges
CUresult CUDAAPI cuGraphGetEdges(CUgraph, CUgraphNode *from, CUgraphNode *to, size_t *count);

#endif
#endif
