// Steps of SGD, Adam and RMSProp, as package internal/kernels defines them.

struct UpdatePart {
	u64 w, g, s; // s: the master weights, or 0
	u64 a, b, c; // the state, 0 where the rule keeps none
	u64 n;
	i32 wide, pad;
};

struct Update {
	u64 skip, overflow; // addresses of flags, which are bytes
	u64 skips, overflows;
	u64 at; // the address of what replaces the first numbers, or 0
	double numbers[10];
	i32 flags[2];
	Parts<UpdatePart> parts;
};

// number returns number i, which may be replaced.
__device__ inline double number(const Update &a, int i) { return a.at != 0 ? ((const double *)a.at)[i] : a.numbers[i]; }

__device__ inline float root_of(float v) { return sqrtf(v); }
__device__ inline double root_of(double v) { return sqrt(v); }

// A rule says by keeps whether it has state i. Its step updates the parameter w and the state, which have type S,
// with the gradient g. The first step reads no state.

template <class A> struct SGDRule {
	A lr, unscale, momentum, fresh, decay; // fresh: 1 - dampening
	bool nesterov, first;

	__device__ SGDRule(const Update &a)
		: lr(number(a, 0)), unscale(number(a, 1)), momentum(a.numbers[2]), fresh(a.numbers[3]), decay(a.numbers[4]),
		  nesterov(a.flags[0]), first(a.flags[1]) {}
	__device__ bool keeps(int i) const { return i == 0 && momentum != 0; }

	template <class S, class G> __device__ void step(S &w, G g, S &v, S &, S &) const {
		A d = up(g) * unscale, p = up(w);
		if (decay != 0) d += decay * p;
		if (momentum != 0) {
			A u = first ? d : momentum * up(v) + fresh * d;
			v = down<S>(u);
			d = nesterov ? d + momentum * u : u;
		}
		w = down<S>(p - lr * d);
	}
};

template <class A> struct AdamWRule {
	A rate, root, kept, unscale, beta1, fresh1, beta2, fresh2, eps, coupled; // fresh: 1 - beta
	bool first, amsgrad;

	__device__ AdamWRule(const Update &a)
		: rate(number(a, 0)), root(number(a, 1)), kept(number(a, 2)), unscale(number(a, 3)), beta1(a.numbers[4]), fresh1(a.numbers[5]),
		  beta2(a.numbers[6]), fresh2(a.numbers[7]), eps(a.numbers[8]), coupled(a.numbers[9]), first(a.flags[0]), amsgrad(a.flags[1]) {}
	__device__ bool keeps(int i) const { return i < 2 || amsgrad; }

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

template <class A> struct RMSPropRule {
	A lr, unscale, alpha, fresh, eps, momentum, decay; // fresh: 1 - alpha
	bool centered;

	__device__ RMSPropRule(const Update &a)
		: lr(number(a, 0)), unscale(number(a, 1)), alpha(a.numbers[2]), fresh(a.numbers[3]), eps(a.numbers[4]), momentum(a.numbers[5]),
		  decay(a.numbers[6]), centered(a.flags[0]) {}
	__device__ bool keeps(int i) const { return i == 0 || (i == 1 ? centered : momentum != 0); }
	static const bool first = false;

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
		if (momentum != 0) {
			d += momentum * up(v);
			v = down<S>(d);
		}
		w = down<S>(p - lr * d);
	}
};

// update updates parameters of type T with gradients of type G. The rule computes in type S. It
// updates the parameters themselves or, with MASTER, the master weights, and then rounds these to
// the parameters.
template <template <class> class RULE, class T, class G, class S, bool MASTER> __device__ inline void update(const Update &all) {
	if (__syncthreads_or(raised(all.skip, all.skips) || raised(all.overflow, all.overflows))) return;
	const RULE<typename Arith<S>::type> rule(all);
	const Share<UpdatePart> mine(all.parts);
	const UpdatePart &a = mine.part;
	T *w = (T *)a.w;
	S *s = (S *)(MASTER ? a.s : a.w), *sa = (S *)a.a, *sb = (S *)a.b, *sc = (S *)a.c;
	const G *g = (const G *)a.g;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = mine.thread * N; i < done; i += mine.threads * N) {
			Packs<S, N> ps, pa, pb, pc; // an array of packs would go to local memory
			Packs<G, N> pg;
			ps.load(s + i);
			pg.load(g + i);
			if (!rule.first) {
				if (rule.keeps(0)) pa.load(sa + i);
				if (rule.keeps(1)) pb.load(sb + i);
				if (rule.keeps(2)) pc.load(sc + i);
			}
#pragma unroll
			for (int j = 0; j < N; j++) rule.step(ps[j], pg[j], pa[j], pb[j], pc[j]);
			ps.store(s + i);
			if (rule.keeps(0)) pa.store(sa + i);
			if (rule.keeps(1)) pb.store(sb + i);
			if (rule.keeps(2)) pc.store(sc + i);
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
		rule.step(s[i], g[i], rule.keeps(0) ? sa[i] : none, rule.keeps(1) ? sb[i] : none, rule.keeps(2) ? sc[i] : none);
		if (MASTER) w[i] = down<T>(up(s[i]));
	}
}

#define UPDATE(function, RULE, T, G, S, MASTER) \
	extern "C" __global__ void function(const __grid_constant__ Update a) { update<RULE, T, G, S, MASTER>(a); }

#define EXPORT(name, T)                                 \
	UPDATE(sgd_##name, SGDRule, T, T, T, false)     \
	UPDATE(adamw_##name, AdamWRule, T, T, T, false) \
	UPDATE(rmsprop_##name, RMSPropRule, T, T, T, false)
EACH_FLOAT(EXPORT)

// With a master: by gradients of the parameters' type, and of float32.
#define MASTERS(name, rule, RULE, T)                           \
	UPDATE(rule##_master_##name, RULE, T, T, float, true)  \
	UPDATE(rule##_master_wide_##name, RULE, T, float, float, true)
#define EXPORT_MASTER(name, T)            \
	MASTERS(name, sgd, SGDRule, T)    \
	MASTERS(name, adamw, AdamWRule, T) \
	MASTERS(name, rmsprop, RMSPropRule, T)
EACH_16_BIT(EXPORT_MASTER)
