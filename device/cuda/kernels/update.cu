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
	double numbers[11];
	i32 flags[2];
	Parts<UpdatePart> parts;
};

// number returns number i, which may be replaced.
__device__ inline double number(const Update &a, int i) { return a.at != 0 ? ((const double *)a.at)[i] : a.numbers[i]; }

__device__ inline float root_of(float v) { return sqrtf(v); }
__device__ inline double root_of(double v) { return sqrt(v); }

// A rule says by keeps whether it has state i. Its step updates the parameter w, which has type S, and the state, with the
// gradient g. The first step reads no state. The state has type S too, or for AdamWRule a narrower type M.

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

// store_moments rounds mean and variance to nearest.
template <class S, class M, class A> __device__ inline void store_moments(const S &, M &m, M &v, A mean, A variance, u32) {
	m = down<M>(mean);
	v = down<M>(variance);
}

// cut adds noise, which has 16 bits, to v, and cuts the sum to the precision of bf16. NaN stays NaN.
__device__ inline bf16 cut(u32 v, u32 noise) {
	if ((v & 0x7f800000) == 0x7f800000) return down<bf16>(__uint_as_float(v));
	return {(u16)((v + noise) >> 16)};
}

// store_moments rounds moments that are narrower than what the rule updates at random.
__device__ inline void store_moments(const float &, bf16 &m, bf16 &v, float mean, float variance, u32 step) {
	const u32 a = __float_as_uint(mean), b = __float_as_uint(variance);
	u32 h = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ step * 0xc2b2ae3du;
	h = (h ^ h >> 16) * 0x7feb352du; // Wellons' lowbias32
	h = (h ^ h >> 15) * 0x846ca68bu;
	h ^= h >> 16;
	m = cut(a, h & 0xffff);
	v = cut(b, h >> 16);
}

template <class A> struct AdamWRule {
	A rate, root, kept, unscale, beta1, fresh1, beta2, fresh2, eps, coupled; // fresh: 1 - beta
	u32 count; // the number of this step
	bool first, amsgrad;

	__device__ AdamWRule(const Update &a)
		: rate(number(a, 0)), root(number(a, 1)), kept(number(a, 2)), unscale(number(a, 3)), beta1(a.numbers[5]), fresh1(a.numbers[6]),
		  beta2(a.numbers[7]), fresh2(a.numbers[8]), eps(a.numbers[9]), coupled(a.numbers[10]), count((u32)number(a, 4)),
		  first(a.flags[0]), amsgrad(a.flags[1]) {}
	__device__ bool keeps(int i) const { return i < 2 || amsgrad; }

	template <class S, class G, class M> __device__ void step(S &w, G g, M &m, M &v, M &most) const {
		A d = up(g) * unscale, p = up(w);
		if (coupled != 0) d += coupled * p;
		A mean = fresh1 * d, variance = fresh2 * d * d;
		if (!first) {
			mean += beta1 * up(m);
			variance += beta2 * up(v);
		}
		store_moments(w, m, v, mean, variance, count);
		if (amsgrad) {
			const A old = first ? variance : up(most);
			if (old > variance || old != old) variance = old;
			most = down<M>(variance);
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

// update updates parameters of type T with gradients of type G. The rule computes in type S, and keeps its state in type M. It
// updates the parameters themselves or, with MASTER, the master weights, and then rounds these to
// the parameters.
template <template <class> class RULE, class T, class G, class S, class M, bool MASTER> __device__ inline void update(const Update &all) {
	if (__syncthreads_or(raised(all.skip, all.skips) || raised(all.overflow, all.overflows))) return;
	const RULE<typename Arith<S>::type> rule(all);
	const Share<UpdatePart> mine(all.parts);
	const UpdatePart &a = mine.part;
	T *w = (T *)a.w;
	S *s = (S *)(MASTER ? a.s : a.w);
	M *sa = (M *)a.a, *sb = (M *)a.b, *sc = (M *)a.c;
	const G *g = (const G *)a.g;
	u64 done = 0;
	if (a.wide) {
		const int N = sizeof(M) < sizeof(T) ? Pack<M>::N : Pack<T>::N;
		done = a.n / N * N;
		for (u64 i = mine.thread * N; i < done; i += mine.threads * N) {
			Packs<S, N> ps;
			Packs<M, N> pa, pb, pc; // an array of packs would go to local memory
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
				Packs<T, N> pw;
#pragma unroll
				for (int j = 0; j < N; j++) pw[j] = down<T>(up(ps[j]));
				pw.store(w + i);
			}
		}
	}
	M none;
	for (u64 i = done + mine.thread; i < a.n; i += mine.threads) {
		rule.step(s[i], g[i], rule.keeps(0) ? sa[i] : none, rule.keeps(1) ? sb[i] : none, rule.keeps(2) ? sc[i] : none);
		if (MASTER) w[i] = down<T>(up(s[i]));
	}
}

#define UPDATE(function, RULE, T, G, S, M, MASTER) \
	extern "C" __global__ void function(const __grid_constant__ Update a) { update<RULE, T, G, S, M, MASTER>(a); }

#define EXPORT(name, T)                                    \
	UPDATE(sgd_##name, SGDRule, T, T, T, T, false)     \
	UPDATE(adamw_##name, AdamWRule, T, T, T, T, false) \
	UPDATE(rmsprop_##name, RMSPropRule, T, T, T, T, false)
EACH_FLOAT(EXPORT)

// With a master: by gradients of the parameters' type, and of float32.
#define MASTERS(name, rule, RULE, T, M)                           \
	UPDATE(rule##_master_##name, RULE, T, T, float, M, true)  \
	UPDATE(rule##_master_wide_##name, RULE, T, float, float, M, true)
#define EXPORT_MASTER(name, T)                    \
	MASTERS(name, sgd, SGDRule, T, float)     \
	MASTERS(name, adamw, AdamWRule, T, float) \
	MASTERS(name, rmsprop, RMSPropRule, T, float)
EACH_16_BIT(EXPORT_MASTER)

// With a state of bfloat16 beside parameters or masters of float32.
#define EXPORT_NARROW(name, T) UPDATE(adamw_narrow_##name, AdamWRule, T, T, T, bf16, false)
#define EXPORT_NARROW_MASTER(name, T) MASTERS(name, adamw_narrow, AdamWRule, T, bf16)
FLOAT32(EXPORT_NARROW)
EACH_16_BIT(EXPORT_NARROW_MASTER)
