// Kernels on float32 that use the processor's vector instructions.

#include <stdint.h>

enum vector_function {
	NONE, EXP, TANH, SIGMOID, SILU, GELU, GELU_TANH,
	// The next functions multiply b by a derivative at a.
	TANH_SLOPE, SIGMOID_SLOPE, SILU_SLOPE, GELU_SLOPE, GELU_TANH_SLOPE,
	SWIGLU,      // SiLU(a)*b
	SWIGLU_GATE, // c times the derivative of SiLU(a)*b with respect to a
};

// vector_apply computes dst = f(a, b, c) for n elements. It ignores the operands that f does not have. dst may be an operand.
// Its versions have vectors of four numbers of type float64, and of eight.
void vector_apply_4(enum vector_function f, float *dst, const float *a, const float *b, const float *c, long n);
void vector_apply_8(enum vector_function f, float *dst, const float *a, const float *b, const float *c, long n);

// vector_exps writes e^(x - shift) to dst, which may be x, unless dst is null, and returns the sum.
double vector_exps_4(float *dst, const float *x, long n, double shift);
double vector_exps_8(float *dst, const float *x, long n, double shift);

// vector_dropout multiplies n elements x by `factor`, and those whose random number is at most `limit` by 0. The first has
// the number `offset` of the sequence that kernelSet.Dropout defines.
void vector_dropout_4(float *dst, const float *x, long n, float factor, uint32_t limit, uint64_t seed, uint64_t offset);
void vector_dropout_8(float *dst, const float *x, long n, float factor, uint32_t limit, uint64_t seed, uint64_t offset);

// pooling describes windows over planes of height*width points of `depth` elements: operand.PoolSizes and kernels.Window.
// The results `before` to after-1 of a row have windows of the same width.
struct pooling {
	long kernel[2], stride[2], padding[2], dilation[2];
	long height, width, depth, rows, columns, before, after;
};

// vector_max_pool computes the rows lo to hi-1 of the results of all planes at x: the largest element of each window,
// and its point, the first one of several. NaN is the largest. A window without elements has -Inf and the point -1.
void vector_max_pool_4(const struct pooling *p, float *dst, int32_t *at, const float *x, long lo, long hi);
void vector_max_pool_8(const struct pooling *p, float *dst, int32_t *at, const float *x, long lo, long hi);

// adamw has the numbers of an update by AdamW: the fields of adamWRule.
struct adamw { float rate, root, kept, unscale, beta1, fresh1, beta2, fresh2, eps; };

// vector_adamw updates n parameters w, their means m and their variances v by the gradients g.
void vector_adamw(struct adamw r, float *w, const float *g, float *m, float *v, long n);

// vector_relu computes max(x, 0) for n elements, and NaN for NaN. dst may be x.
void vector_relu(float *dst, const float *x, long n);

// vector_relu_grad computes g where y > 0, and y elsewhere.
void vector_relu_grad(float *dst, const float *g, const float *y, long n);

// vector_sum returns the sum of n elements, in 16 lanes.
double vector_sum(const float *x, long n);

// vector_add_rows adds rows of n elements to sums. Each row begins `stride` elements after the one before.
void vector_add_rows(double *sums, const float *x, long n, long stride, long rows);

// vector_largest returns the largest of n > 0 elements, or a NaN.
float vector_largest(const float *x, long n);
