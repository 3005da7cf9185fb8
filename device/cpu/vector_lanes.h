// Functions of float32. The file that includes this one defines LANES, how many float64 a vector has, VECTOR, the
// attribute of functions that use vectors, and NAME, which names the functions that others call.
//
// The kernels convert float32 to float64 and round once. Their polynomials have relative errors below 1e-9, a hundredth
// of the unit in the last place of float32. So the results are as accurate as those of the plain kernels, and terms that
// cancel lose nothing. An element's result depends neither on its position nor on n nor on LANES.

#include "vector.h"
#include <math.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define INLINE VECTOR static inline __attribute__((always_inline))

typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t bits __attribute__((vector_size(8 * LANES)));
typedef float narrow __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *p) {
	narrow v;
	memcpy(&v, p, sizeof v);
	return __builtin_convertvector(v, vec);
}

INLINE void store(float *p, vec v) {
	narrow n = __builtin_convertvector(v, narrow);
	memcpy(p, &n, sizeof n);
}

INLINE vec choose(bits mask, vec yes, vec no) { return (vec)((mask & (bits)yes) | (~mask & (bits)no)); }

INLINE vec absolute(vec v) { return (vec)((bits)v & INT64_MAX); }

// split returns 2^n and e^r - 1, where v = n·log 2 + r and |r| <= log(2)/2.
INLINE void split(vec v, vec *power, vec *rest) {
	const double round = 0x1.8p52; // adding this constant leaves the integer in the lowest bits
	vec n = v * M_LOG2E + round;
	*power = (vec)(((bits)n + 1023) << 52);
	vec r = v - (n - round) * M_LN2, p = r * (1. / 362880) + 1. / 40320;
	p = p * r + 1. / 5040;
	p = p * r + 1. / 720;
	p = p * r + 1. / 120;
	p = p * r + 1. / 24;
	p = p * r + 1. / 6;
	p = p * r + 1. / 2;
	*rest = p * r * r + r;
}

// exponential returns 0 and infinity where a float32 could not tell the result from them.
INLINE vec exponential(vec v) {
	vec power, rest;
	split(v, &power, &rest);
	vec e = power * rest + power;
	e = choose(v > 200., (vec){} + INFINITY, e);
	return (vec)((bits)e & ~(v < -200.));
}

INLINE vec sigmoid(vec x) { return 1. / (1. + exponential(-x)); }

// sigmoid_slope is accurate in both tails.
INLINE vec sigmoid_slope(vec x) {
	vec e = exponential(-absolute(x));
	return e / ((1. + e) * (1. + e));
}

// tanh is (1 - e)/(1 + e) with e = exp(-2|x|). It computes 1 - e without a subtraction, which would lose small x.
INLINE vec tangent(vec x) {
	vec v = -2. * absolute(x), power, rest;
	v = choose(v < -100., (vec){} - 100., v);
	split(v, &power, &rest);
	vec m = power * rest + (power - 1.);
	vec t = -m / (2. + m);
	return (vec)((bits)t | ((bits)x & INT64_MIN));
}

// normal returns the normal distribution function and its density. It approximates the tail, divided by e^(-x²/2), with
// a polynomial in t = 1/(1 + |x|/3.75), so small results are accurate.
INLINE vec normal(vec x, vec *density) {
	vec t = 3.75 / (3.75 + absolute(x)), e = exponential(-0.5 * x * x);
	vec p = t * -0.015716556484834564 + 0.09150929828495546;
	p = p * t - 0.2031522385599976;
	p = p * t + 0.20434613762113663;
	p = p * t - 0.11875830168893323;
	p = p * t + 0.09866328424580115;
	p = p * t + 0.044668931163508944;
	p = p * t + 0.08727375003961375;
	p = p * t + 0.09836459558467224;
	p = p * t + 0.10641751382699646;
	p = p * t + 0.10638358567155787;
	vec tail = p * t * e;
	*density = e * 0.3989422804014327;
	return choose(x > 0., 1. - tail, tail);
}

// gelu_tanh_argument returns 2u, where GELUTanh is x·(1 + tanh u)/2 = x·sigmoid(2u).
INLINE vec gelu_tanh_argument(vec x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); }

INLINE vec silu_slope(vec x) {
	vec s = sigmoid(x);
	return s * (1. + x * (1. - s));
}

INLINE vec gelu_slope(vec x) {
	vec density, below = normal(x, &density);
	return below + x * density;
}

INLINE vec gelu_tanh_slope(vec x) {
	vec u = gelu_tanh_argument(x), s = sigmoid_slope(u);
	// If s is 0, x may be infinite.
	return sigmoid(u) + choose(s == 0., s, s * x * (1.5957691216057308 * (1. + 0.134145 * x * x)));
}

// apply computes f for LANES elements.
INLINE vec apply(enum vector_function f, const float *a, const float *b, const float *c) {
	vec x = load(a), density;
	switch (f) {
	case NONE: break;
	case EXP: return exponential(x);
	case TANH: return tangent(x);
	case SIGMOID: return sigmoid(x);
	case SILU: return x * sigmoid(x);
	case GELU: return x * normal(x, &density);
	case GELU_TANH: return x * sigmoid(gelu_tanh_argument(x));
	case TANH_SLOPE: return load(b) * (4. * sigmoid_slope(2. * x));
	case SIGMOID_SLOPE: return load(b) * sigmoid_slope(x);
	case SILU_SLOPE: return load(b) * silu_slope(x);
	case GELU_SLOPE: return load(b) * gelu_slope(x);
	case GELU_TANH_SLOPE: return load(b) * gelu_tanh_slope(x);
	case SWIGLU: return x * sigmoid(x) * load(b);
	case SWIGLU_GATE: return load(c) * load(b) * silu_slope(x);
	}
	__builtin_unreachable();
}

INLINE void apply_all(enum vector_function f, float *dst, const float *a, const float *b, const float *c, long n) {
	for (; n >= LANES; n -= LANES, dst += LANES, a += LANES, b += LANES, c += LANES)
		store(dst, apply(f, a, b, c));
	if (n > 0) { // pad the rest
		float pad[3][LANES] = {};
		memcpy(pad[0], a, n * sizeof *a);
		memcpy(pad[1], b, n * sizeof *b);
		memcpy(pad[2], c, n * sizeof *c);
		store(pad[0], apply(f, pad[0], pad[1], pad[2]));
		memcpy(dst, pad[0], n * sizeof *dst);
	}
}

VECTOR void NAME(vector_apply)(enum vector_function f, float *dst, const float *a, const float *b, const float *c, long n) {
	switch (f) { // one loop for each function
	case NONE: break;
#define LOOP(f) case f: apply_all(f, dst, a, b, c, n); break;
	LOOP(EXP) LOOP(TANH) LOOP(SIGMOID) LOOP(SILU) LOOP(GELU) LOOP(GELU_TANH)
	LOOP(TANH_SLOPE) LOOP(SIGMOID_SLOPE) LOOP(SILU_SLOPE) LOOP(GELU_SLOPE) LOOP(GELU_TANH_SLOPE)
	LOOP(SWIGLU) LOOP(SWIGLU_GATE)
	}
}

VECTOR double NAME(vector_exps)(float *dst, const float *x, long n, double shift) {
	enum { ALL = 8 }; // the sum has eight lanes for any LANES, so its bits are the same
	vec sum[ALL / LANES] = {};
	for (long i = 0; i < n; i += ALL) {
		float pad[ALL];
		const float *from = x + i;
		float *to = dst == NULL ? NULL : dst + i;
		if (n - i < ALL) {
			for (long j = 0; j < ALL; j++)
				pad[j] = j < n - i ? from[j] : -INFINITY;
			from = to = pad;
		}
		for (int j = 0; j < ALL / LANES; j++) {
			vec e = exponential(load(from + j * LANES) - shift);
			sum[j] += e;
			if (to != NULL)
				store(to + j * LANES, e);
		}
		if (to == pad && dst != NULL)
			memcpy(dst + i, pad, (n - i) * sizeof *dst);
	}
	double s[ALL];
	memcpy(s, sum, sizeof s);
	return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

typedef uint64_t words __attribute__((vector_size(8 * LANES)));
typedef uint32_t narrow_words __attribute__((vector_size(4 * LANES)));

// MULTIPLY returns the products of the lower halves of words.
#if !defined __x86_64__
#define MULTIPLY(a, b) (((a) & 0xFFFFFFFF) * ((b) & 0xFFFFFFFF))
#elif LANES == 8
#define MULTIPLY(a, b) (words)_mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#else
#define MULTIPLY(a, b) (words)_mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#endif

// philox writes LANES blocks, from `block` on, of the numbers for dropout that random.go defines.
INLINE void philox(uint32_t to[4 * LANES], uint64_t seed, uint64_t block) {
	words c0, c2 = (words){} + 2, c3 = {}, m0 = (words){} + 0xD2511F53, m1 = (words){} + 0xCD9E8D57;
	for (int i = 0; i < LANES; i++)
		c0[i] = block + i;
	words c1 = c0 >> 32;
	uint32_t k0 = seed, k1 = seed >> 32;
	for (int i = 0; i < 10; i++) { // the upper halves of words do not matter
		words p0 = MULTIPLY(c0, m0), p1 = MULTIPLY(c2, m1);
		c0 = (p1 >> 32) ^ c1 ^ k0;
		c1 = p1;
		c2 = (p0 >> 32) ^ c3 ^ k1;
		c3 = p0;
		k0 += 0x9E3779B9;
		k1 += 0xBB67AE85;
	}
	words lo = (c0 & 0xFFFFFFFF) | c1 << 32, hi = (c2 & 0xFFFFFFFF) | c3 << 32;
	for (int i = 0; i < LANES; i++)
		memcpy(to + 4 * i, (uint64_t[2]){lo[i], hi[i]}, 16);
}

VECTOR void NAME(vector_dropout)(float *dst, const float *x, long n, float factor, uint32_t limit, uint64_t seed, uint64_t offset) {
	enum { ALL = 4 * LANES };
	uint32_t random[ALL];
	uint64_t block = offset / 4;
	for (long skip = offset % 4, m; n > 0; n -= m, dst += m, x += m, skip = 0, block += LANES) {
		philox(random, seed, block);
		m = n < ALL - skip ? n : ALL - skip;
		if (m < ALL) {
			for (long i = 0; i < m; i++)
				dst[i] = x[i] * (random[skip + i] > limit ? factor : 0);
			continue;
		}
		for (int i = 0; i < ALL; i += LANES) {
			narrow v, scale = (narrow){} + factor;
			narrow_words r;
			memcpy(&r, random + i, sizeof r);
			memcpy(&v, x + i, sizeof v);
			v *= (narrow)((narrow_words)(r > limit) & (narrow_words)scale);
			memcpy(dst + i, &v, sizeof v);
		}
	}
}

typedef int32_t points __attribute__((vector_size(4 * LANES)));

// A range has the taps of a window along an axis: from, from + step, ... below to.
struct range { long from, to, step; };

INLINE struct range taps(const struct pooling *p, int axis, long position, long n) {
	struct range r = {position * p->stride[axis] - p->padding[axis], 0, p->dilation[axis]};
	r.to = r.from + r.step * (p->kernel[axis] - 1) + 1;
	r.to = r.to < n ? r.to : n;
	while (r.from < 0)
		r.from += r.step;
	return r;
}

// pool_lanes computes LANES windows. Window i begins i*step elements and i*next points after the first, which is in plane.
INLINE void pool_lanes(float *dst, int32_t *at, const float *plane, struct range rows, struct range columns, long width, long depth, points next, long step) {
	narrow most = (narrow){} - INFINITY, v;
	points where = ~(points){};
	for (long i = rows.from; i < rows.to; i += rows.step) {
		for (long j = columns.from; j < columns.to; j += columns.step) {
			const float *from = plane + (i * width + j) * depth;
			if (step == 1) {
				memcpy(&v, from, sizeof v);
			} else { // every other element; the window beside j has the element after the last one
				words two;
				memcpy(&two, j > columns.from ? from - 1 : from, sizeof two);
				v = (narrow)__builtin_convertvector(j > columns.from ? two >> 32 : two, narrow_words);
			}
			points here = next + (int32_t)(i * width + j), larger = (v > most) | ((v != v) & (most == most));
			if (i == rows.from && j == columns.from)
				larger = ~(points){};
			most = (narrow)((larger & (points)v) | (~larger & (points)most));
			where = (larger & here) | (~larger & where);
		}
	}
	memcpy(dst, &most, sizeof most);
	memcpy(at, &where, sizeof where);
}

// pool_run computes n windows, which begin step elements and next points one after the other.
INLINE void pool_run(float *dst, int32_t *at, const float *plane, struct range rows, struct range columns, long width, long depth, long n, long step, long next) {
	if (n >= LANES && (step == 1 || (step == 2 && columns.to - columns.from > 1))) {
		points each;
		for (int l = 0; l < LANES; l++)
			each[l] = l * next;
		for (long c = 0; c < n; c += LANES) {
			if (c > n - LANES) // the last vector overlaps the one before
				c = n - LANES;
			if (step == 1)
				pool_lanes(dst + c, at + c, plane + c, rows, columns, width, depth, each + (int32_t)(c * next), 1);
			else
				pool_lanes(dst + c, at + c, plane + 2 * c, rows, columns, width, depth, each + (int32_t)(c * next), 2);
		}
		return;
	}
	for (long c = 0; c < n; c++) {
		float most = -INFINITY;
		int32_t where = -1;
		for (long i = rows.from; i < rows.to; i += rows.step) {
			for (long j = columns.from; j < columns.to; j += columns.step) {
				float v = plane[(i * width + j) * depth + c * step];
				if (where < 0 || v > most || (v != v && most == most))
					most = v, where = i * width + j + c * next;
			}
		}
		dst[c] = most;
		at[c] = where;
	}
}

VECTOR void NAME(vector_max_pool)(const struct pooling *p, float *dst, int32_t *at, const float *x, long lo, long hi) {
	const long stride = p->stride[1], depth = p->depth;
	for (; lo < hi; lo++) {
		const float *plane = x + lo / p->rows * p->height * p->width * depth;
		struct range rows = taps(p, 0, lo % p->rows, p->height);
		for (long q = 0, n; q < p->columns; q += n) {
			struct range columns = taps(p, 1, q, p->width);
			n = depth == 1 && q >= p->before && q < p->after ? p->after - q : 1;
			long to = (lo * p->columns + q) * depth;
			if (depth == 1)
				pool_run(dst + to, at + to, plane, rows, columns, p->width, 1, n, stride, stride);
			else
				pool_run(dst + to, at + to, plane, rows, columns, p->width, depth, depth, 1, 0);
		}
	}
}
