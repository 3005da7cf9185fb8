//go:build cgo && unix && (amd64 || arm64)

#include "vector.h"
#include <math.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#define VECTOR __attribute__((target("avx2")))
#define ROOT(v) _mm256_sqrt_ps(v)
#else
#include <arm_neon.h>
#define VECTOR
#define ROOT(v) ({ \
	union { wide all; float32x4_t half[2]; } u = {v}; \
	u.half[0] = vsqrtq_f32(u.half[0]), u.half[1] = vsqrtq_f32(u.half[1]); \
	u.all; })
#endif

// wide are as many float32 as the processor's instructions compute at a time.
typedef float wide __attribute__((vector_size(32)));
typedef int32_t wide_bits __attribute__((vector_size(32)));
enum { WIDE = 8 };

typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(32)));

VECTOR float vector_largest(const float *x, long n) {
	float most = x[0];
	long i = 0;
	if (n >= WIDE) {
		wide top, v;
		memcpy(&top, x, sizeof top);
		wide_bits nan = top != top;
		for (i = WIDE; i + WIDE <= n; i += WIDE) {
			memcpy(&v, x + i, sizeof v);
			nan |= v != v;
			wide_bits larger = v > top;
			top = (wide)((larger & (wide_bits)v) | (~larger & (wide_bits)top));
		}
		for (long j = 0; j < WIDE; j++) {
			if (nan[j])
				return NAN;
			most = top[j] > most ? top[j] : most;
		}
	}
	for (; i < n; i++) {
		if (x[i] != x[i])
			return NAN;
		most = x[i] > most ? x[i] : most;
	}
	return most;
}

VECTOR void vector_relu(float *dst, const float *x, long n) {
	for (; n >= WIDE; n -= WIDE, dst += WIDE, x += WIDE) {
		wide v;
		memcpy(&v, x, sizeof v);
		v = (wide)((wide_bits)v & ~(v <= 0));
		memcpy(dst, &v, sizeof v);
	}
	for (long i = 0; i < n; i++)
		dst[i] = x[i] <= 0 ? 0 : x[i];
}

VECTOR void vector_relu_grad(float *dst, const float *g, const float *y, long n) {
	for (; n >= WIDE; n -= WIDE, dst += WIDE, g += WIDE, y += WIDE) {
		wide slope, v;
		memcpy(&slope, g, sizeof slope);
		memcpy(&v, y, sizeof v);
		wide_bits on = v > 0;
		v = (wide)((on & (wide_bits)slope) | (~on & (wide_bits)v));
		memcpy(dst, &v, sizeof v);
	}
	for (long i = 0; i < n; i++)
		dst[i] = y[i] > 0 ? g[i] : y[i];
}

VECTOR double vector_sum(const float *x, long n) {
	enum { LANES = 16 };
	doubles s[LANES / 4] = {};
	for (; n >= LANES; n -= LANES, x += LANES) {
		for (int i = 0; i < LANES / 4; i++) {
			floats v;
			memcpy(&v, x + 4 * i, sizeof v);
			s[i] += __builtin_convertvector(v, doubles);
		}
	}
	doubles t = (s[0] + s[1]) + (s[2] + s[3]);
	double sum = (t[0] + t[1]) + (t[2] + t[3]);
	for (long i = 0; i < n; i++)
		sum += x[i];
	return sum;
}

VECTOR void vector_add_rows(double *sums, const float *x, long n, long stride, long rows) {
	enum { COLUMNS = 16 }; // as many sums as fit into registers
	long c = 0;
	for (; c + COLUMNS <= n; c += COLUMNS) {
		doubles s[COLUMNS / 4];
		memcpy(s, sums + c, sizeof s);
		for (long r = 0; r < rows; r++) {
			for (int i = 0; i < COLUMNS / 4; i++) {
				floats v;
				memcpy(&v, x + r * stride + c + 4 * i, sizeof v);
				s[i] += __builtin_convertvector(v, doubles);
			}
		}
		memcpy(sums + c, s, sizeof s);
	}
	for (; c < n; c++)
		for (long r = 0; r < rows; r++)
			sums[c] += x[r * stride + c];
}

// The updates are compiled without FMA, whatever the flags: so all processors compute the same bits as the plain kernel,
// and replicas of a model stay equal if only some have AVX2.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#define EXACT VECTOR
#else // gcc ignores the pragma
#define EXACT VECTOR __attribute__((optimize("fp-contract=off")))
#endif

EXACT static inline void adamw(struct adamw r, float *w, const float *g, float *m, float *v) {
	wide x, d, mean, variance;
	memcpy(&x, w, sizeof x);
	memcpy(&d, g, sizeof d);
	memcpy(&mean, m, sizeof mean);
	memcpy(&variance, v, sizeof variance);
	d *= r.unscale;
	mean = r.fresh1 * d + r.beta1 * mean;
	variance = r.fresh2 * d * d + r.beta2 * variance;
	x = r.kept * x - r.rate * mean / (ROOT(variance) * r.root + r.eps);
	memcpy(w, &x, sizeof x);
	memcpy(m, &mean, sizeof mean);
	memcpy(v, &variance, sizeof variance);
}

EXACT void vector_adamw(struct adamw r, float *w, const float *g, float *m, float *v, long n) {
	for (; n >= WIDE; n -= WIDE, w += WIDE, g += WIDE, m += WIDE, v += WIDE)
		adamw(r, w, g, m, v);
	if (n > 0) {
		float pad[4][WIDE] = {};
		memcpy(pad[0], w, n * sizeof *w);
		memcpy(pad[1], g, n * sizeof *g);
		memcpy(pad[2], m, n * sizeof *m);
		memcpy(pad[3], v, n * sizeof *v);
		adamw(r, pad[0], pad[1], pad[2], pad[3]);
		memcpy(w, pad[0], n * sizeof *w);
		memcpy(m, pad[2], n * sizeof *m);
		memcpy(v, pad[3], n * sizeof *v);
	}
}
