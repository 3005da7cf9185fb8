// One step of stochastic gradient descent: see device.SGDStep.

struct SGDPart {
	u64 w, g, v, m, n; // v is 0 without momentum, m without a master
	i32 wide, pad;
};

struct SGD {
	u64 skip, overflow; // bytes
	u64 skips, overflows;
	u64 at; // address of values that override lr and unscale, or 0
	double lr, momentum, fresh, decay, unscale; // fresh: 1 - dampening
	i32 nesterov, first;
	Parts<SGDPart> parts;
};

template <class A> struct Rule {
	A lr, momentum, fresh, decay, unscale;
	bool moving, nesterov, first;

	__device__ Rule(const SGD &a)
		: lr(number(a.at, 0, a.lr)), momentum(a.momentum), fresh(a.fresh), decay(a.decay), unscale(number(a.at, 1, a.unscale)),
		  moving(a.momentum != 0), nesterov(a.nesterov), first(a.first) {}

	// step updates w and v, which have type S, with the gradient g.
	template <class S, class G> __device__ void step(S &w, G g, S &v) const {
		A d = up(g) * unscale, p = up(w);
		if (decay != 0) d += decay * p;
		if (moving) {
			A u = first ? d : momentum * up(v) + fresh * d;
			v = down<S>(u);
			d = nesterov ? d + momentum * u : u;
		}
		w = down<S>(p - lr * d);
	}
};

// sgd updates parameters of type T with gradients of type G. The rule computes in type S. It
// updates the parameters themselves or, with MASTER, the master weights, and then rounds these to
// the parameters.
template <class T, class G, class S, bool MASTER> __device__ inline void sgd(const SGD &all) {
	if (__syncthreads_or(raised(all.skip, all.skips) || raised(all.overflow, all.overflows))) return;
	const Rule<typename Arith<S>::type> rule(all);
	const Share<SGDPart> mine(all.parts);
	const SGDPart &a = mine.part;
	T *w = (T *)a.w;
	S *s = (S *)(MASTER ? a.m : a.w), *v = (S *)a.v;
	const G *g = (const G *)a.g;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = mine.thread * N; i < done; i += mine.threads * N) {
			Packs<S, N> ps, pv;
			Packs<G, N> pg;
			ps.load(s + i);
			pg.load(g + i);
			if (rule.moving && !rule.first) pv.load(v + i);
#pragma unroll
			for (int j = 0; j < N; j++) rule.step(ps[j], pg[j], pv[j]);
			ps.store(s + i);
			if (rule.moving) pv.store(v + i);
			if (MASTER) {
				Pack<T> pw;
#pragma unroll
				for (int j = 0; j < N; j++) pw.v[j] = down<T>(up(ps[j]));
				pw.store(w + i);
			}
		}
	}
	S none;
	for (u64 i = done + mine.thread; i < a.n; i += mine.threads) {
		rule.step(s[i], g[i], rule.moving ? v[i] : none);
		if (MASTER) w[i] = down<T>(up(s[i]));
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void sgd_##name(const __grid_constant__ SGD a) { sgd<T, T, T, false>(a); }
EACH_FLOAT(EXPORT)

// With masters: for gradients of the parameters' type, and of float32.
#define EXPORT_MASTER(name, T)                                                                   \
	extern "C" __global__ void sgd_master_##name(const __grid_constant__ SGD a) { sgd<T, T, float, true>(a); } \
	extern "C" __global__ void sgd_master_wide_##name(const __grid_constant__ SGD a) { sgd<T, float, float, true>(a); }
EACH_16_BIT(EXPORT_MASTER)
