// Elementwise kernels over contiguous arrays: Axpby, Unary, UnaryGrad, SwiGLU, MSEGrad, and the bias and
// activation of a Linear if cuBLAS has no fused kernel for them.

struct Map {
	u64 dst, x, y, g; // g: a scalar, or the bias
	u64 n, cols;
	Accum acc;
	double a, b; // parameters of a function
	i32 op, wide; // wide: dst, x and y are aligned to 16 bytes
};

// map accumulates f(x, y, i) into dst for every i. dst may be the same memory as x or y.
template <class T, class F> __device__ inline void map(const Map &a, F f) {
	typedef typename Arith<T>::type A;
	T *dst = (T *)a.dst;
	const T *x = (const T *)a.x, *y = (const T *)a.y;
	const A alpha = a.acc.alpha, beta = a.acc.beta;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = global_thread() * N; i < done; i += global_threads() * N) {
			Pack<T> px, py, pd;
			px.load(x + i);
			py.load(y + i);
			if (beta != 0) pd.load(dst + i);
#pragma unroll
			for (int j = 0; j < N; j++) {
				A v = alpha * f(up(px.v[j]), up(py.v[j]), i + j);
				if (beta != 0) v += beta * up(pd.v[j]);
				pd.v[j] = down<T>(v);
			}
			pd.store(dst + i);
		}
	}
	for (u64 i = done + global_thread(); i < a.n; i += global_threads()) {
		A v = alpha * f(up(x[i]), up(y[i]), i);
		if (beta != 0) v += beta * up(dst[i]);
		dst[i] = down<T>(v);
	}
}

// These are the functions of CUDA's library, overloaded by type.
__device__ inline float exp_(float v) { return expf(v); }
__device__ inline double exp_(double v) { return exp(v); }
__device__ inline float log_(float v) { return logf(v); }
__device__ inline double log_(double v) { return log(v); }
__device__ inline float sqrt_(float v) { return sqrtf(v); }
__device__ inline double sqrt_(double v) { return sqrt(v); }
__device__ inline float tanh_(float v) { return tanhf(v); }
__device__ inline double tanh_(double v) { return tanh(v); }
__device__ inline float abs_(float v) { return fabsf(v); }
__device__ inline double abs_(double v) { return fabs(v); }

__device__ inline float erfc_(float v) { return erfcf(v); }
__device__ inline double erfc_(double v) { return erfc(v); }

// normal_cdf is the normal distribution function, and normal_density its derivative. In the tails the rounding error of
// their argument would grow to many ulp, so it is computed with fma and the result is corrected. 16-bit types do not
// need this.
template <class T, class A> __device__ inline A normal_cdf(A v) {
	const A root = A(-0.70710678118654752440), t = v * root;
	const A y = A(0.5) * erfc_(t);
	if (sizeof(T) != 4) return y;
	const A off = fmaf(v, root, -t) - v * A(1.2101617485e-8); // of t; root is so much larger than -√½
	return fmaf(t > 1 && t < 11 ? -2 * t * off : 0, y, y);    // at 11 it is 0
}
template <class T, class A> __device__ inline A normal_density(A v) {
	const A scale = A(0.39894228040143267794); // 1/√(2π)
	if (sizeof(T) != 4) return scale * exp_(v * v / -2);
	const A c = abs_(v) < 16 ? v : A(16), square = c * c; // at 16 the density is 0
	return scale * (exp_(square / -2) * (1 - fmaf(c, c, -square) / 2));
}

// quick_exp and quick_divide are accurate to a rounding of T. For the 16-bit types they are a few
// instructions. The divisor is of moderate size.
template <class T> __device__ inline float quick_exp(float v) { return __expf(v); }
template <> __device__ inline float quick_exp<float>(float v) { return expf(v); }
template <class T> __device__ inline double quick_exp(double v) { return exp(v); }
template <class T> __device__ inline float quick_divide(float v, float by) { return __fdividef(v, by); }
template <> __device__ inline float quick_divide<float>(float v, float by) { return v / by; }
template <class T> __device__ inline double quick_divide(double v, double by) { return v / by; }

// gelu_tanh computes x·(1 + tanh u)/2 with u = c·(x + k·x³), and its slope at x. (1 + tanh u)/2 is the logistic
// function of 2u. Computed with e = exp(-2|u|), small values of it and of the slope are accurate.
#define GELU_C 0.79788456080286535588 // √(2/π)
#define GELU_K 0.044715
template <class T, class A> __device__ inline void gelu_tanh(A x, A &value, A &slope) {
	const A u2 = A(2 * GELU_C) * (x + A(GELU_K) * x * x * x);
	const A e = quick_exp<T>(u2 > 0 ? -u2 : u2);
	const A share = quick_divide<T>(A(1), 1 + e), gate = x > 0 ? share : e * share;
	value = x * gate;
	slope = gate;
	if (e != 0) slope += x * (e * share * share) * A(2 * GELU_C) * (1 + A(3 * GELU_K) * x * x); // x² may be infinite if e is 0
}

__device__ inline float log1p_(float v) { return log1pf(v); }
__device__ inline double log1p_(double v) { return log1p(v); }
__device__ inline float expm1_(float v) { return expm1f(v); }
__device__ inline double expm1_(double v) { return expm1(v); }
__device__ inline float pow_(float v, float a) { return powf(v, a); }
__device__ inline double pow_(double v, double a) { return pow(v, a); }
__device__ inline float sin_(float v) { return sinf(v); }
__device__ inline double sin_(double v) { return sin(v); }
__device__ inline float cos_(float v) { return cosf(v); }
__device__ inline double cos_(double v) { return cos(v); }

// sigmoid and its derivative sigmoid_slope are accurate in both tails: they compute small results without a
// subtraction from 1.
template <class A> __device__ inline A sigmoid(A v) {
	const A e = exp_(-abs_(v));
	return (v < 0 ? e : A(1)) / (1 + e);
}
template <class A> __device__ inline A sigmoid_slope(A v) {
	const A e = exp_(-abs_(v));
	return e / ((1 + e) * (1 + e));
}

// power returns x to the power of a. All threads have the same a, so they do not diverge.
template <class A> __device__ inline A power(A x, A a) { return a == 2 ? x * x : a == 1 ? x : pow_(x, a); }

// relu returns NaN for NaN.
template <class A> __device__ inline A relu(A v) { return v < 0 ? A(0) : v; }

// These are the values of kernels.UnaryFunc.
enum {
	NEG, EXP, LOG, SQRT, TANH, SIGMOID, RELU, GELU, GELU_TANH, ABS, RSQRT, SIN, COS, SILU,
	ADD_SCALAR, POW, CLAMP, LEAKY_RELU, ELU, SOFTPLUS
};

template <class T> __device__ inline void axpby(const Map &a) {
	typedef typename Arith<T>::type A;
	map<T>(a, [](A x, A, u64) { return x; });
}

template <class T> __device__ inline void unary(const Map &a) {
	typedef typename Arith<T>::type A;
	const A pa = a.a, pb = a.b;
	switch (a.op) {
	case NEG: map<T>(a, [](A x, A, u64) { return -x; }); break;
	case EXP: map<T>(a, [](A x, A, u64) { return exp_(x); }); break;
	case LOG: map<T>(a, [](A x, A, u64) { return log_(x); }); break;
	case SQRT: map<T>(a, [](A x, A, u64) { return sqrt_(x); }); break;
	case TANH: map<T>(a, [](A x, A, u64) { return tanh_(x); }); break;
	case SIGMOID: map<T>(a, [](A x, A, u64) { return sigmoid(x); }); break;
	case RELU: map<T>(a, [](A x, A, u64) { return relu(x); }); break;
	case GELU: map<T>(a, [](A x, A, u64) { return x * normal_cdf<T>(x); }); break;
	case GELU_TANH:
		map<T>(a, [](A x, A, u64) {
			A value, slope;
			gelu_tanh<T>(x, value, slope);
			return value;
		});
		break;
	case ABS: map<T>(a, [](A x, A, u64) { return abs_(x); }); break;
	case RSQRT: map<T>(a, [](A x, A, u64) { return 1 / sqrt_(x); }); break;
	case SIN: map<T>(a, [](A x, A, u64) { return sin_(x); }); break;
	case COS: map<T>(a, [](A x, A, u64) { return cos_(x); }); break;
	case SILU: map<T>(a, [](A x, A, u64) { return x * sigmoid(x); }); break;
	case ADD_SCALAR: map<T>(a, [pa](A x, A, u64) { return x + pa; }); break;
	case POW: map<T>(a, [pa](A x, A, u64) { return power(x, pa); }); break;
	case CLAMP:
		map<T>(a, [pa, pb](A x, A, u64) {
			const A v = x < pa ? pa : x;
			return v > pb ? pb : v;
		});
		break;
	case LEAKY_RELU: map<T>(a, [pa](A x, A, u64) { return x > 0 ? x : pa * x; }); break;
	case ELU: map<T>(a, [pa](A x, A, u64) { return x > 0 ? x : pa * expm1_(x); }); break;
	case SOFTPLUS:
		map<T>(a, [pa, pb](A x, A, u64) {
			const A z = pa * x;
			return z > pb ? x : ((z > 0 ? z : A(0)) + log1p_(exp_(-abs_(z)))) / pa;
		});
		break;
	}
}

// unary_grad: x is the gradient of the result. y is the operand or the result, from which the
// derivative is computed.
template <class T> __device__ inline void unary_grad(const Map &a) {
	typedef typename Arith<T>::type A;
	const A pa = a.a, pb = a.b;
	switch (a.op) {
	case NEG: map<T>(a, [](A g, A, u64) { return -g; }); break;
	case EXP: map<T>(a, [](A g, A y, u64) { return g * y; }); break;
	case LOG: map<T>(a, [](A g, A x, u64) { return g / x; }); break;
	case SQRT: map<T>(a, [](A g, A y, u64) { return g / (2 * y); }); break;
	case TANH: map<T>(a, [](A g, A x, u64) { return g * (4 * sigmoid_slope(2 * x)); }); break;
	case SIGMOID: map<T>(a, [](A g, A x, u64) { return g * sigmoid_slope(x); }); break;
	case RELU: map<T>(a, [](A g, A y, u64) { return y > 0 ? g : y; }); break; // if y is not positive, it is 0 or NaN
	case GELU:
		map<T>(a, [](A g, A x, u64) {
			return g * (normal_cdf<T>(x) + x * normal_density<T>(x));
		});
		break;
	case GELU_TANH:
		map<T>(a, [](A g, A x, u64) {
			A value, slope;
			gelu_tanh<T>(x, value, slope);
			return g * slope;
		});
		break;
	case ABS: map<T>(a, [](A g, A x, u64) { return x > 0 ? g : x < 0 ? -g : g * x; }); break; // x is 0 or NaN at the end
	// In the following functions, x is NaN if no comparison is true.
	case CLAMP: map<T>(a, [pa, pb](A g, A x, u64) { return x >= pa && x <= pb ? g : x == x ? A(0) : x; }); break;
	case LEAKY_RELU: map<T>(a, [pa](A g, A x, u64) { return x > 0 ? g : x <= 0 ? pa * g : x; }); break;
	case RSQRT: map<T>(a, [](A g, A y, u64) { return g * A(-0.5) * y * y * y; }); break; // halved first, so that nothing overflows before the result
	case SIN: map<T>(a, [](A g, A x, u64) { return g * cos_(x); }); break;
	case COS: map<T>(a, [](A g, A x, u64) { return -g * sin_(x); }); break;
	case SILU:
		map<T>(a, [](A g, A x, u64) {
			const A s = sigmoid(x);
			return g * (s * (1 + x * (1 - s)));
		});
		break;
	case ADD_SCALAR: map<T>(a, [](A g, A, u64) { return g; }); break;
	case POW: map<T>(a, [pa](A g, A x, u64) { return pa == 0 ? 0 * g : g * (pa * power(x, pa - 1)); }); break;
	case ELU: map<T>(a, [pa](A g, A x, u64) { return x > 0 ? g : g * (pa * exp_(x)); }); break;
	case SOFTPLUS:
		map<T>(a, [pa, pb](A g, A x, u64) {
			const A z = pa * x;
			return z > pb ? g : g * sigmoid(z);
		});
		break;
	}
}

template <class T> __device__ inline void mse_grad(const Map &a) {
	typedef typename Arith<T>::type A;
	const A scale = 2 * (double)up(*(const T *)a.g) / (double)a.n;
	map<T>(a, [scale](A x, A y, u64) { return scale * (x - y); });
}

template <class T> __device__ inline void scale_by(const Map &a) {
	typedef typename Arith<T>::type A;
	const A factor = *(const A *)a.g;
	map<T>(a, [factor](A x, A, u64) { return factor * x; });
}

// gate_sigmoid is sigmoid, to a rounding of T.
template <class T, class A> __device__ inline A gate_sigmoid(A v) {
	const A e = quick_exp<T>(-abs_(v));
	return quick_divide<T>(v < 0 ? e : A(1), 1 + e);
}

// swiglu: x is the gate.
template <class T> __device__ inline void swiglu(const Map &a) {
	typedef typename Arith<T>::type A;
	map<T>(a, [](A x, A y, u64) { return x * gate_sigmoid<T>(x) * y; });
}

struct SwigluGrad {
	u64 dgate, dup, g, gate, up, n; // dgate or dup may be 0
	Accum acc_gate, acc_up;
	i32 wide; // all arrays are aligned to 16 bytes
};

// swiglu_grads computes n gradients of elements in registers.
template <class T> __device__ inline void swiglu_grads(const SwigluGrad &a, int n, const T *g, const T *gate, const T *up_, T *dgate, T *dup) {
	typedef typename Arith<T>::type A;
#pragma unroll
	for (int j = 0; j < n; j++) {
		const A x = up(gate[j]), s = gate_sigmoid<T>(x), of = up(g[j]);
		if (a.dgate) accumulate(dgate + j, a.acc_gate, of * up(up_[j]) * (s * (1 + x * (1 - s))));
		if (a.dup) accumulate(dup + j, a.acc_up, of * (x * s));
	}
}

template <class T> __device__ inline void swiglu_grad(const SwigluGrad &a) {
	const T *g = (const T *)a.g, *gate = (const T *)a.gate, *up_ = (const T *)a.up;
	T *dgate = (T *)a.dgate, *dup = (T *)a.dup;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = global_thread() * N; i < done; i += global_threads() * N) {
			Pack<T> pg, px, py, dx, dy;
			pg.load(g + i);
			px.load(gate + i);
			if (dgate) py.load(up_ + i);
			if (dgate && a.acc_gate.beta != 0) dx.load(dgate + i);
			if (dup && a.acc_up.beta != 0) dy.load(dup + i);
			swiglu_grads(a, N, pg.v, px.v, py.v, dx.v, dy.v);
			if (dgate) dx.store(dgate + i);
			if (dup) dy.store(dup + i);
		}
	}
	for (u64 i = done + global_thread(); i < a.n; i += global_threads()) swiglu_grads(a, 1, g + i, gate + i, up_ + i, dgate + i, dup + i);
}

// bias_act adds a bias. op says whether a ReLU follows.
template <class T> __device__ inline void bias_act(const Map &a) {
	typedef typename Arith<T>::type A;
	const T *bias = (const T *)a.g;
	const u64 cols = a.cols;
	if (a.op)
		map<T>(a, [bias, cols](A x, A, u64 i) { return relu(x + up(bias[i % cols])); });
	else
		map<T>(a, [bias, cols](A x, A, u64 i) { return x + up(bias[i % cols]); });
}

#define EXPORT(name, T) \
	extern "C" __global__ void axpby_##name(const Map a) { axpby<T>(a); } \
	extern "C" __global__ void unary_##name(const Map a) { unary<T>(a); } \
	extern "C" __global__ void unary_grad_##name(const Map a) { unary_grad<T>(a); } \
	extern "C" __global__ void mse_grad_##name(const Map a) { mse_grad<T>(a); } \
	extern "C" __global__ void scale_by_##name(const Map a) { scale_by<T>(a); } \
	extern "C" __global__ void swiglu_##name(const Map a) { await_earlier(); swiglu<T>(a); } \
	extern "C" __global__ void swiglu_grad_##name(const SwigluGrad a) { swiglu_grad<T>(a); } \
	extern "C" __global__ void bias_act_##name(const Map a) { bias_act<T>(a); }
EACH_FLOAT(EXPORT)
