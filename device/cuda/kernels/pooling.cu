// Pooling uses a thread for each element of the result, so that sums are added in one order.

struct Pool {
	u64 to, from, index;
	u64 planes, h, w, oh, ow;
	i64 k[2], s[2], p[2], d[2]; // kernel, stride, padding, dilation
	u64 exclude, adaptive;
	Accum acc;
};

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
	for (u64 e = global_thread(); e < a.planes * l; e += global_threads()) {
		const u64 plane = divide(e, l), at = e - plane * l, oy = divide(at, a.ow), ox = at - oy * a.ow;
		const T *x = (const T *)a.from + plane * a.h * a.w;
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
		typename Arith<T>::type most = up(x[best]);
		for (i64 y = top; y < bottom; y += a.d[0])
			for (i64 i = left; i < right; i += a.d[1]) {
				const typename Arith<T>::type v = up(x[y * a.w + i]);
				if (v > most || (v != v && most == most)) {
					best = y * a.w + i;
					most = v;
				}
			}
		((T *)a.to)[e] = x[best];
		((i32 *)a.index)[e] = best;
	}
}

template <class T> __device__ inline void max_pool_grad(const Pool &a) {
	const u64 n = a.h * a.w, l = a.oh * a.ow;
	for (u64 e = global_thread(); e < a.planes * n; e += global_threads()) {
		const u64 plane = divide(e, n), at = e - plane * n, y = divide(at, a.w), x = at - y * a.w;
		i64 top, bottom, left, right;
		reach(a, 0, y, a.h, a.oh, top, bottom);
		reach(a, 1, x, a.w, a.ow, left, right);
		double v = 0;
		for (i64 oy = top; oy < bottom; oy++)
			for (i64 ox = left; ox < right; ox++) {
				const u64 i = plane * l + oy * a.ow + ox;
				if (((const i32 *)a.index)[i] == (i32)at) v += up(((const T *)a.from)[i]);
			}
		accumulate((T *)a.to + e, a.acc, v);
	}
}

template <class T> __device__ inline void avg_pool(const Pool &a) {
	const u64 l = a.oh * a.ow;
	for (u64 e = global_thread(); e < a.planes * l; e += global_threads()) {
		const u64 plane = divide(e, l), at = e - plane * l, oy = divide(at, a.ow), ox = at - oy * a.ow;
		const T *x = (const T *)a.from + plane * a.h * a.w;
		const Region rows(a, 0, oy, a.h, a.oh), cols(a, 1, ox, a.w, a.ow);
		double v = 0;
		for (i64 y = rows.from; y < rows.to; y++)
			for (i64 i = cols.from; i < cols.to; i++) v += up(x[y * a.w + i]);
		if (rows.from < rows.to && cols.from < cols.to) v /= (double)(rows.size * cols.size);
		accumulate((T *)a.to + e, a.acc, v);
	}
}

template <class T> __device__ inline void avg_pool_grad(const Pool &a) {
	const u64 n = a.h * a.w, l = a.oh * a.ow;
	for (u64 e = global_thread(); e < a.planes * n; e += global_threads()) {
		const u64 plane = divide(e, n), at = e - plane * n;
		const i64 y = divide(at, a.w), x = at - y * a.w;
		i64 top, bottom, left, right;
		reach(a, 0, y, a.h, a.oh, top, bottom);
		reach(a, 1, x, a.w, a.ow, left, right);
		double v = 0;
		for (i64 oy = top; oy < bottom; oy++) {
			const Region rows(a, 0, oy, a.h, a.oh);
			if (y < rows.from || y >= rows.to) continue;
			for (i64 ox = left; ox < right; ox++) {
				const Region cols(a, 1, ox, a.w, a.ow);
				if (x >= cols.from && x < cols.to) v += (double)up(((const T *)a.from)[plane * l + oy * a.ow + ox]) / (double)(rows.size * cols.size);
			}
		}
		accumulate((T *)a.to + e, a.acc, v);
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void max_pool_##name(const Pool a) { max_pool<T>(a); } \
	extern "C" __global__ void max_pool_grad_##name(const Pool a) { max_pool_grad<T>(a); } \
	extern "C" __global__ void avg_pool_##name(const Pool a) { avg_pool<T>(a); } \
	extern "C" __global__ void avg_pool_grad_##name(const Pool a) { avg_pool_grad<T>(a); }
EACH_FLOAT(EXPORT)
