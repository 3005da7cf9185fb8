// Pooling uses a thread for each element of the result, so that sums are added in one order.

struct Pool {
	u64 to, from, index;
	u64 n, c, h, w, oh, ow;
	i64 k[2], s[2], p[2], d[2]; // kernel, stride, padding, dilation
	u64 exclude, adaptive, last; // last: whether channels are the last axis
	Accum acc;
};

// Plane is the image and the channel of element e of images whose channels have l elements, and the element's
// number at in the channel.
struct Plane {
	u64 image, channel, at;
	__device__ Plane(const Pool &a, u64 e, u64 l) {
		const u64 row = divide(e, a.last ? a.c : l), rest = e - row * (a.last ? a.c : l);
		image = divide(row, a.last ? l : a.c);
		const u64 other = row - image * (a.last ? l : a.c);
		channel = a.last ? rest : other;
		at = a.last ? other : rest;
	}
	// from returns the first element of the same channel in images whose channels have l elements. The
	// channel's elements are step(a) apart.
	__device__ u64 from(const Pool &a, u64 l) const { return a.last ? image * l * a.c + channel : (image * a.c + channel) * l; }
};
__device__ inline u64 step(const Pool &a) { return a.last ? a.c : 1; }

// Region is the range of elements, along an axis of n elements, whose mean is element i of out.
struct Region {
	i64 from, to, size;
	__device__ Region(const Pool &a, int axis, i64 i, i64 n, i64 out) {
		if (a.adaptive) {
			from = i * n / out;
			to = ((i + 1) * n + out - 1) / out;
			size = to - from;
			return;
		}
		const i64 begin = i * a.s[axis] - a.p[axis], end = min(begin + a.k[axis], n + a.p[axis]);
		from = max(begin, (i64)0);
		to = min(end, n);
		size = a.exclude ? to - from : end - begin;
	}
};

// reach computes the range [from, to) of elements of out, along an axis, that may depend on element
// i of n.
__device__ inline void reach(const Pool &a, int axis, i64 i, i64 n, i64 out, i64 &from, i64 &to) {
	if (a.adaptive) {
		from = i * out / n;
		to = min(((i + 1) * out + n - 1) / n, out);
		return;
	}
	const i64 last = i + a.p[axis], first = last - a.d[axis] * (a.k[axis] - 1);
	from = first > 0 ? (first + a.s[axis] - 1) / a.s[axis] : 0;
	to = min(last / a.s[axis] + 1, out);
}

template <class T> __device__ inline void max_pool(const Pool &a) {
	const u64 l = a.oh * a.ow;
	const u64 next = step(a);
	for (u64 e = global_thread(); e < a.n * a.c * l; e += global_threads()) {
		const Plane p(a, e, l);
		const u64 oy = divide(p.at, a.ow), ox = p.at - oy * a.ow;
		const T *x = (const T *)a.from + p.from(a, a.h * a.w);
		i64 top = (i64)oy * a.s[0] - a.p[0], left = (i64)ox * a.s[1] - a.p[1];
		const i64 bottom = min(top + a.d[0] * (a.k[0] - 1) + 1, (i64)a.h), right = min(left + a.d[1] * (a.k[1] - 1) + 1, (i64)a.w);
		while (top < 0) top += a.d[0];
		while (left < 0) left += a.d[1];
		if (top >= bottom || left >= right) {
			((T *)a.to)[e] = down<T>((typename Arith<T>::type)__longlong_as_double(0xfff0000000000000ll));
			((i32 *)a.index)[e] = -1;
			continue;
		}
		i64 best = top * a.w + left;
		typename Arith<T>::type most = up(x[best * next]);
		for (i64 y = top; y < bottom; y += a.d[0])
			for (i64 i = left; i < right; i += a.d[1]) {
				const typename Arith<T>::type v = up(x[(y * a.w + i) * next]);
				if (v > most || (v != v && most == most)) {
					best = y * a.w + i;
					most = v;
				}
			}
		((T *)a.to)[e] = x[best * next];
		((i32 *)a.index)[e] = best;
	}
}

template <class T> __device__ inline void max_pool_grad(const Pool &a) {
	const u64 n = a.h * a.w, l = a.oh * a.ow;
	const u64 next = step(a);
	for (u64 e = global_thread(); e < a.n * a.c * n; e += global_threads()) {
		const Plane p(a, e, n);
		const u64 first = p.from(a, l), at = p.at, y = divide(at, a.w), x = at - y * a.w;
		i64 top, bottom, left, right;
		reach(a, 0, y, a.h, a.oh, top, bottom);
		reach(a, 1, x, a.w, a.ow, left, right);
		double v = 0;
		for (i64 oy = top; oy < bottom; oy++)
			for (i64 ox = left; ox < right; ox++) {
				const u64 i = first + (oy * a.ow + ox) * next;
				if (((const i32 *)a.index)[i] == (i32)at) v += up(((const T *)a.from)[i]);
			}
		accumulate((T *)a.to + e, a.acc, v);
	}
}

// The wide kernels compute eight neighbouring channels in a thread. They need channels that are the last axis, a
// multiple of eight, and aligned operands.
const int EACH = 8;

// deposit accumulates eight sums.
template <class T> __device__ inline void deposit(T *to, const Accum &acc, const typename Arith<T>::type *sums) {
	typedef typename Arith<T>::type A;
	Packs<T, EACH> out;
	if (acc.beta != 0) out.load(to);
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		A v = (A)acc.alpha * sums[j];
		if (acc.beta != 0) v += (A)acc.beta * up(out[j]);
		out[j] = down<T>(v);
	}
	out.store(to);
}

// Pack8 is the place of eight channels: the image, the row and the column, and the first channel. All sizes of one
// image fit in 32 bits.
struct Pack8 {
	u64 image;
	i32 y, x;
	u32 c;
	__device__ Pack8(u64 e, u32 packs, u32 h, u32 w) {
		const u64 row = divide(e, packs), line = divide(row, w);
		c = (e - row * packs) * EACH;
		x = row - line * w;
		image = divide(line, h);
		y = line - image * h;
	}
};

// reach_near is reach in 32 bits, of a window.
__device__ inline void reach_near(const Pool &a, int axis, i32 i, i32 out, i32 &from, i32 &to) {
	const u32 stride = a.s[axis];
	const i32 last = i + (i32)a.p[axis], first = last - (i32)(a.d[axis] * (a.k[axis] - 1));
	from = first > 0 ? (first + stride - 1) / stride : 0;
	to = min((i32)((u32)last / stride) + 1, out);
}

template <class T> __device__ inline void max_pool_wide(const Pool &a) {
	typedef typename Arith<T>::type A;
	const u32 packs = a.c / EACH;
	const i32 h = a.h, w = a.w, kh = a.k[0], kw = a.k[1], dy = a.d[0], dx = a.d[1];
	for (u64 e = global_thread(); e < a.n * a.oh * a.ow * packs; e += global_threads()) {
		const Pack8 p(e, packs, a.oh, a.ow);
		const i32 top = p.y * (i32)a.s[0] - (i32)a.p[0], left = p.x * (i32)a.s[1] - (i32)a.p[1];
		const T *x = (const T *)a.from + p.image * a.h * a.w * a.c + p.c;
		Packs<T, EACH> most;
		Packs<i32, EACH> best;
#pragma unroll
		for (int j = 0; j < EACH; j++) {
			most[j] = down<T>((A)__longlong_as_double(0xfff0000000000000ll));
			best[j] = -1;
		}
		for (i32 ky = 0, y = top; ky < kh; ky++, y += dy)
			for (i32 kx = 0, i = left; kx < kw; kx++, i += dx) {
				if (y < 0 || y >= h || i < 0 || i >= w) continue;
				const i32 at = y * w + i;
				Packs<T, EACH> in;
				in.load(x + (u64)at * a.c);
#pragma unroll
				for (int j = 0; j < EACH; j++) {
					const A v = up(in[j]), m = up(most[j]);
					if (best[j] < 0 || v > m || (v != v && m == m)) {
						most[j] = in[j];
						best[j] = at;
					}
				}
			}
		most.store((T *)a.to + e * EACH);
		best.store((i32 *)a.index + e * EACH);
	}
}

template <class T> __device__ inline void max_pool_grad_wide(const Pool &a) {
	typedef typename Arith<T>::type A;
	const u32 packs = a.c / EACH;
	const i32 oh = a.oh, ow = a.ow;
	for (u64 e = global_thread(); e < a.n * a.h * a.w * packs; e += global_threads()) {
		const Pack8 p(e, packs, a.h, a.w);
		i32 top, bottom, left, right;
		reach_near(a, 0, p.y, oh, top, bottom);
		reach_near(a, 1, p.x, ow, left, right);
		const i32 at = p.y * (i32)a.w + p.x;
		const u64 first = p.image * a.oh * a.ow * a.c + p.c;
		A sums[EACH] = {};
		for (i32 oy = top; oy < bottom; oy++)
			for (i32 ox = left; ox < right; ox++) {
				const u64 i = first + (u64)(oy * ow + ox) * a.c;
				Packs<i32, EACH> index;
				Packs<T, EACH> g;
				index.load((const i32 *)a.index + i);
				g.load((const T *)a.from + i);
#pragma unroll
				for (int j = 0; j < EACH; j++)
					if (index[j] == at) sums[j] += up(g[j]);
			}
		deposit((T *)a.to + e * EACH, a.acc, sums);
	}
}

template <class T> __device__ inline void avg_pool_grad_wide(const Pool &a) {
	typedef typename Arith<T>::type A;
	const u32 packs = a.c / EACH;
	for (u64 e = global_thread(); e < a.n * a.h * a.w * packs; e += global_threads()) {
		const Pack8 p(e, packs, a.h, a.w);
		i64 top, bottom, left, right;
		reach(a, 0, p.y, a.h, a.oh, top, bottom);
		reach(a, 1, p.x, a.w, a.ow, left, right);
		A sums[EACH] = {};
		for (i64 oy = top; oy < bottom; oy++) {
			const Region rows(a, 0, oy, a.h, a.oh);
			if (p.y < rows.from || p.y >= rows.to) continue;
			for (i64 ox = left; ox < right; ox++) {
				const Region cols(a, 1, ox, a.w, a.ow);
				if (p.x < cols.from || p.x >= cols.to) continue;
				const A size = (A)(rows.size * cols.size);
				Packs<T, EACH> g;
				g.load((const T *)a.from + ((p.image * a.oh + oy) * a.ow + ox) * a.c + p.c);
#pragma unroll
				for (int j = 0; j < EACH; j++) sums[j] += up(g[j]) / size;
			}
		}
		deposit((T *)a.to + e * EACH, a.acc, sums);
	}
}

template <class T> __device__ inline void avg_pool(const Pool &a) {
	const u64 l = a.oh * a.ow;
	const u64 next = step(a);
	for (u64 e = global_thread(); e < a.n * a.c * l; e += global_threads()) {
		const Plane p(a, e, l);
		const u64 oy = divide(p.at, a.ow), ox = p.at - oy * a.ow;
		const T *x = (const T *)a.from + p.from(a, a.h * a.w);
		const Region rows(a, 0, oy, a.h, a.oh), cols(a, 1, ox, a.w, a.ow);
		double v = 0;
		for (i64 y = rows.from; y < rows.to; y++)
			for (i64 i = cols.from; i < cols.to; i++) v += up(x[(y * a.w + i) * next]);
		if (rows.from < rows.to && cols.from < cols.to) v /= (double)(rows.size * cols.size);
		accumulate((T *)a.to + e, a.acc, v);
	}
}

template <class T> __device__ inline void avg_pool_grad(const Pool &a) {
	const u64 n = a.h * a.w, l = a.oh * a.ow;
	const u64 next = step(a);
	for (u64 e = global_thread(); e < a.n * a.c * n; e += global_threads()) {
		const Plane p(a, e, n);
		const u64 first = p.from(a, l);
		const i64 y = divide(p.at, a.w), x = p.at - y * a.w;
		i64 top, bottom, left, right;
		reach(a, 0, y, a.h, a.oh, top, bottom);
		reach(a, 1, x, a.w, a.ow, left, right);
		double v = 0;
		for (i64 oy = top; oy < bottom; oy++) {
			const Region rows(a, 0, oy, a.h, a.oh);
			if (y < rows.from || y >= rows.to) continue;
			for (i64 ox = left; ox < right; ox++) {
				const Region cols(a, 1, ox, a.w, a.ow);
				if (x >= cols.from && x < cols.to) v += (double)up(((const T *)a.from)[first + (oy * a.ow + ox) * next]) / (double)(rows.size * cols.size);
			}
		}
		accumulate((T *)a.to + e, a.acc, v);
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void max_pool_##name(const Pool a) { max_pool<T>(a); } \
	extern "C" __global__ void max_pool_grad_##name(const Pool a) { max_pool_grad<T>(a); } \
	extern "C" __global__ void max_pool_wide_##name(const Pool a) { max_pool_wide<T>(a); } \
	extern "C" __global__ void max_pool_grad_wide_##name(const Pool a) { max_pool_grad_wide<T>(a); } \
	extern "C" __global__ void avg_pool_grad_wide_##name(const Pool a) { avg_pool_grad_wide<T>(a); } \
	extern "C" __global__ void avg_pool_##name(const Pool a) { avg_pool<T>(a); } \
	extern "C" __global__ void avg_pool_grad_##name(const Pool a) { avg_pool_grad<T>(a); }
EACH_FLOAT(EXPORT)
