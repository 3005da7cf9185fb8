//go:build cgo && unix && (amd64 || arm64)

#define LANES 8
#define NAME(f) f##_8
#ifdef __x86_64__
#define VECTOR __attribute__((target("avx512f,avx512dq,fma")))
#else
#define VECTOR
#endif
#include "vector_lanes.h"
