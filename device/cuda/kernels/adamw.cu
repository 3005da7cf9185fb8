// One step of Adam, as package internal/kernels defines it in AdamWStep.

struct AdamWPart {
	u64 w, g, m, v;
	u64 most, s; // most is 0 without AMSGrad; s is 0 without master weights
	u64 n;
	i32 wide, pad;
};

struct AdamW {
	u64 skip, overflow; // addresses of flags, which are bytes
	u64 skips, overflows;
	double beta1, fresh1, beta2, fresh2; // fresh: 1 - beta
	u64 at; // address of values that override rate, root, kept and unscale, or 0
	double rate, root, eps, coupled, kept, unscale;
	i32 first, amsgrad;
	Parts<AdamWPart> parts;
};

__device__ inline float root_of(float v) { return sqrtf(v); }
__device__ inline double root_of(double v) { return sqrt(v); }

template <class A> struct Rule {
	A beta1, fresh1, beta2, fresh2, rate, root, eps, coupled, kept, unscale;
	bool first, amsgrad;

	__device__ Rule(const AdamW &a)
		: beta1(a.beta1), fresh1(a.fresh1), beta2(a.beta2), fresh2(a.fresh2), rate(number(a.at, 0, a.rate)),
		  root(number(a.at, 1, a.root)), eps(a.eps), coupled(a.coupled), kept(number(a.at, 2, a.kept)),
		  unscale(number(a.at, 3, a.unscale)), first(a.first), amsgrad(a.amsgrad) {}

	// step updates w, m and v, which have type S, with the gradient g; with AMSGrad it also updates
	// most.
	template <class S, class G> __device__ void step(S &w, G g, S &m, S &v, S &most) const {
		A d = up(g) * unscale, p = up(w);
		if (coupled != 0) d += coupled * p;
		A mean = fresh1 * d, variance = fresh2 * d * d;
		if (!first) {
			mean += beta1 * up(m);
			variance += beta2 * up(v);
		}
		m = down<S>(mean);
		v = down<S>(variance);
		if (amsgrad) {
			const A old = first ? variance : up(most);
			if (old > variance || old != old) variance = old;
			most = down<S>(variance);
		}
		w = down<S>(kept * p - rate * mean / (root_of(variance) * root + eps));
	}
};

// adamw updates parameters of type T with gradients of type G. The rule computes in type S. It
// updates the parameters themselves or, with MASTER, the master weights, and then rounds these to
// the parameters.
template <class T, class G, class S, bool MASTER> __device__ inline void adamw(const AdamW &all) {
	if (__syncthreads_or(raised(all.skip, all.skips) || raised(all.overflow, all.overflows))) return;
	const Rule<typename Arith<S>::type> rule(all);
	const Share<AdamWPart> mine(all.parts);
	const AdamWPart &a = mine.part;
	T *w = (T *)a.w;
	S *s = (S *)(MASTER ? a.s : a.w), *m = (S *)a.m, *v = (S *)a.v, *most = (S *)a.most;
	const G *g = (const G *)a.g;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = mine.thread * N; i < done; i += mine.threads * N) {
			Packs<S, N> ps, pm, pv, pmost;
			Packs<G, N> pg;
			ps.load(s + i);
			pg.load(g + i);
			if (!rule.first) {
				pm.load(m + i);
				pv.load(v + i);
				if (rule.amsgrad) pmost.load(most + i);
			}
#pragma unroll
			for (int j = 0; j < N; j++) rule.step(ps[j], pg[j], pm[j], pv[j], pmost[j]);
			ps.store(s + i);
			pm.store(m + i);
			pv.store(v + i);
			if (rule.amsgrad) pmost.store(most + i);
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
		rule.step(s[i], g[i], m[i], v[i], rule.amsgrad ? most[i] : none);
		if (MASTER) w[i] = down<T>(up(s[i]));
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void adamw_##name(const __grid_constant__ AdamW a) { adamw<T, T, T, false>(a); }
EACH_FLOAT(EXPORT)

// With masters: for gradients of the parameters' type, and of float32.
#define EXPORT_MASTER(name, T)                                                                       \
	extern "C" __global__ void adamw_master_##name(const __grid_constant__ AdamW a) { adamw<T, T, float, true>(a); } \
	extern "C" __global__ void adamw_master_wide_##name(const __grid_constant__ AdamW a) { adamw<T, float, float, true>(a); }
EACH_16_BIT(EXPORT_MASTER)
