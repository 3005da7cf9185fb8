// One step of stochastic gradient descent: see device.SGDStep.

struct SGD {
	u64 w, g, v, skip; // v is 0 without momentum; skip: bytes
	u64 n, skips;
	double lr, momentum, fresh, decay; // fresh: 1 - dampening
	i32 nesterov, first, wide, pad;
};

template <class T> struct Rule {
	typedef typename Arith<T>::type A;
	A lr, momentum, fresh, decay;
	bool moving, nesterov, first;

	__device__ Rule(const SGD &a)
		: lr(a.lr), momentum(a.momentum), fresh(a.fresh), decay(a.decay),
		  moving(a.v != 0), nesterov(a.nesterov), first(a.first) {}

	__device__ void step(T &w, T g, T &v) const {
		A d = up(g), p = up(w);
		if (decay != 0) d += decay * p;
		if (moving) {
			A u = first ? d : momentum * up(v) + fresh * d;
			v = down<T>(u);
			d = nesterov ? d + momentum * u : u;
		}
		w = down<T>(p - lr * d);
	}
};

template <class T> __device__ inline void sgd(const SGD &a) {
	bool raised = false;
	for (u64 i = threadIdx.x; i < a.skips; i += blockDim.x) raised |= ((const u8 *)a.skip)[i] != 0;
	if (__syncthreads_or(raised)) return;
	const Rule<T> rule(a);
	T *w = (T *)a.w, *v = (T *)a.v;
	const T *g = (const T *)a.g;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = global_thread() * N; i < done; i += global_threads() * N) {
			Pack<T> pw, pg, pv;
			pw.load(w + i);
			pg.load(g + i);
			if (rule.moving && !rule.first) pv.load(v + i);
#pragma unroll
			for (int j = 0; j < N; j++) rule.step(pw.v[j], pg.v[j], pv.v[j]);
			pw.store(w + i);
			if (rule.moving) pv.store(v + i);
		}
	}
	T none;
	for (u64 i = done + global_thread(); i < a.n; i += global_threads()) rule.step(w[i], g[i], rule.moving ? v[i] : none);
}

#define EXPORT(name, T) \
	extern "C" __global__ void sgd_##name(const SGD a) { sgd<T>(a); }
EACH_FLOAT(EXPORT)
