// One step of RMSProp: see device.RMSPropStep.

struct RMSPropPart {
	u64 w, g, sq, m, v, s, n; // m is 0 unless centered, v without momentum, s without a master
	i32 wide, pad;
};

struct RMSProp {
	u64 skip, overflow; // bytes
	u64 skips, overflows;
	u64 at; // address of values that override lr and unscale, or 0
	double lr, alpha, fresh, eps, momentum, decay, unscale; // fresh: 1 - alpha
	i32 centered, moving;
	Parts<RMSPropPart> parts;
};

__device__ inline float root_of(float v) { return sqrtf(v); }
__device__ inline double root_of(double v) { return sqrt(v); }

template <class A> struct Rule {
	A lr, alpha, fresh, eps, momentum, decay, unscale;
	bool centered, moving;

	__device__ Rule(const RMSProp &a)
		: lr(number(a.at, 0, a.lr)), alpha(a.alpha), fresh(a.fresh), eps(a.eps), momentum(a.momentum), decay(a.decay),
		  unscale(number(a.at, 1, a.unscale)),
		  centered(a.centered), moving(a.moving) {}

	// step updates w and sq, which have type S, with the gradient g, and m and v if present.
	template <class S, class G> __device__ void step(S &w, G g, S &sq, S &m, S &v) const {
		A d = up(g) * unscale, p = up(w);
		if (decay != 0) d += decay * p;
		A square = alpha * up(sq) + fresh * d * d;
		sq = down<S>(square);
		if (centered) {
			const A mean = alpha * up(m) + fresh * d;
			m = down<S>(mean);
			square -= mean * mean;
		}
		d /= root_of(square) + eps;
		if (moving) {
			d += momentum * up(v);
			v = down<S>(d);
		}
		w = down<S>(p - lr * d);
	}
};

// rmsprop updates parameters of type T with gradients of type G. The rule computes in type S. It
// updates the parameters themselves or, with MASTER, the master weights, and then rounds these to
// the parameters.
template <class T, class G, class S, bool MASTER> __device__ inline void rmsprop(const RMSProp &all) {
	if (__syncthreads_or(raised(all.skip, all.skips) || raised(all.overflow, all.overflows))) return;
	const Rule<typename Arith<S>::type> rule(all);
	const Share<RMSPropPart> mine(all.parts);
	const RMSPropPart &a = mine.part;
	T *w = (T *)a.w;
	S *s = (S *)(MASTER ? a.s : a.w), *sq = (S *)a.sq, *m = (S *)a.m, *v = (S *)a.v;
	const G *g = (const G *)a.g;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = mine.thread * N; i < done; i += mine.threads * N) {
			Packs<S, N> ps, psq, pm, pv;
			Packs<G, N> pg;
			ps.load(s + i);
			pg.load(g + i);
			psq.load(sq + i);
			if (rule.centered) pm.load(m + i);
			if (rule.moving) pv.load(v + i);
#pragma unroll
			for (int j = 0; j < N; j++) rule.step(ps[j], pg[j], psq[j], pm[j], pv[j]);
			ps.store(s + i);
			psq.store(sq + i);
			if (rule.centered) pm.store(m + i);
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
		rule.step(s[i], g[i], sq[i], rule.centered ? m[i] : none, rule.moving ? v[i] : none);
		if (MASTER) w[i] = down<T>(up(s[i]));
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void rmsprop_##name(const __grid_constant__ RMSProp a) { rmsprop<T, T, T, false>(a); }
EACH_FLOAT(EXPORT)

// With masters: for gradients of the parameters' type, and of float32.
#define EXPORT_MASTER(name, T)                                                                           \
	extern "C" __global__ void rmsprop_master_##name(const __grid_constant__ RMSProp a) { rmsprop<T, T, float, true>(a); } \
	extern "C" __global__ void rmsprop_master_wide_##name(const __grid_constant__ RMSProp a) { rmsprop<T, float, float, true>(a); }
EACH_16_BIT(EXPORT_MASTER)
