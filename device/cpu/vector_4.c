//go:build cgo && unix && (amd64 || arm64)

#define LANES 4
#define NAME(f) f##_4
#ifdef __x86_64__
#define VECTOR __attribute__((target("avx2,fma")))
#else
#define VECTOR
#endif
#include "vector_lanes.h"
