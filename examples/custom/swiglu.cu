// y = a·sigmoid(a)·b for each row (a, b) of x, and its gradient.

template <class T> __device__ void swiglu(T *y, const T *x, i64 n, i64 elements) {
	typedef typename Arith<T>::type A;
	for (i64 i = global_thread(); i < elements; i += global_threads()) {
		const A a = up(x[i / n * 2 * n + i % n]), b = up(x[i / n * 2 * n + n + i % n]);
		y[i] = down<T>(a / (1 + exp(-a)) * b);
	}
}

template <class T> __device__ void swiglu_grad(T *dx, Accum acc, const T *g, const T *x, i64 n, i64 elements) {
	typedef typename Arith<T>::type A;
	for (i64 i = global_thread(); i < elements; i += global_threads()) {
		const i64 at = i / n * 2 * n + i % n;
		const A a = up(x[at]), b = up(x[at + n]), s = 1 / (1 + exp(-a));
		accumulate(dx + at, acc, up(g[i]) * b * s * (1 + a * (1 - s)));
		accumulate(dx + at + n, acc, up(g[i]) * a * s);
	}
}
