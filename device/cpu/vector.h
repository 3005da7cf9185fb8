// Kernels on float32 that use the processor's vector instructions.

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

// adamw has the numbers of an update by AdamW: the fields of adamWRule.
struct adamw { float rate, root, kept, unscale, beta1, fresh1, beta2, fresh2, eps; };

// vector_adamw updates n parameters w, their means m and their variances v by the gradients g.
void vector_adamw(struct adamw r, float *w, const float *g, float *m, float *v, long n);

// vector_largest returns the largest of n > 0 elements, or a NaN.
float vector_largest(const float *x, long n);
