// Convolution as matrix products. im2col writes the elements that each position of the result
// depends on as columns; col2im is its adjoint. The columns of several images lie side by side.

struct Conv {
	u64 to, from, bias;
	u64 first, images; // of the batch
	u64 c, h, w;       // of an image
	u64 kh, kw, oh, ow;
	i64 sh, sw, ph, pw, dh, dw; // stride, padding, dilation
	Accum acc;
};

// im2col writes columns [c·kh·kw images·oh·ow] of images [n c h w].
template <class T> __device__ inline void im2col(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l, n = a.c * a.kh * a.kw * width;
	for (u64 e = global_thread(); e < n; e += global_threads()) {
		const u64 row = divide(e, width), col = e - row * width;
		const u64 image = divide(col, l), at = col - image * l;
		const u64 oy = divide(at, a.ow), ox = at - oy * a.ow;
		const u64 c = divide(row, a.kh * a.kw), tap = row - c * a.kh * a.kw;
		const u64 ky = divide(tap, a.kw), kx = tap - ky * a.kw;
		const i64 y = (i64)oy * a.sh - a.ph + (i64)ky * a.dh, x = (i64)ox * a.sw - a.pw + (i64)kx * a.dw;
		T v = T();
		if (y >= 0 && y < (i64)a.h && x >= 0 && x < (i64)a.w)
			v = ((const T *)a.from)[((a.first + image) * a.c + c) * a.h * a.w + y * a.w + x];
		((T *)a.to)[e] = v;
	}
}

// col2im accumulates into each element of images [n c h w] the sum of its copies in the columns, in
// the order of the taps.
template <class T> __device__ inline void col2im(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l, plane = a.h * a.w, n = a.images * a.c * plane;
	for (u64 e = global_thread(); e < n; e += global_threads()) {
		const u64 channel = divide(e, plane), at = e - channel * plane;
		const u64 image = divide(channel, a.c), c = channel - image * a.c;
		const i64 y = divide(at, a.w), x = at - y * a.w;
		double v = 0;
		for (u64 ky = 0; ky < a.kh; ky++) {
			const i64 dy = y + a.ph - (i64)ky * a.dh;
			if (dy < 0 || dy % a.sh || dy / a.sh >= (i64)a.oh) continue;
			for (u64 kx = 0; kx < a.kw; kx++) {
				const i64 dx = x + a.pw - (i64)kx * a.dw;
				if (dx < 0 || dx % a.sw || dx / a.sw >= (i64)a.ow) continue;
				v += up(((const T *)a.from)[((c * a.kh + ky) * a.kw + kx) * width + image * l + dy / a.sh * a.ow + dx / a.sw]);
			}
		}
		accumulate((T *)a.to + (a.first * a.c * plane + e), a.acc, v);
	}
}

// to_columns copies results [n c oh ow] to columns [c images·oh·ow]. from_columns copies such
// columns back and adds the bias of each channel.
template <class T> __device__ inline void to_columns(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l;
	for (u64 e = global_thread(); e < a.c * width; e += global_threads()) {
		const u64 c = divide(e, width), col = e - c * width, image = divide(col, l);
		((T *)a.to)[e] = ((const T *)a.from)[((a.first + image) * a.c + c) * l + (col - image * l)];
	}
}

template <class T> __device__ inline void from_columns(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l;
	for (u64 e = global_thread(); e < a.c * width; e += global_threads()) {
		const u64 channel = divide(e, l), image = divide(channel, a.c), c = channel - image * a.c;
		T v = ((const T *)a.from)[c * width + image * l + (e - channel * l)];
		if (a.bias) v = down<T>(up(v) + up(((const T *)a.bias)[c]));
		((T *)a.to)[a.first * a.c * l + e] = v;
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void im2col_##name(const Conv a) { im2col<T>(a); } \
	extern "C" __global__ void col2im_##name(const Conv a) { col2im<T>(a); } \
	extern "C" __global__ void to_columns_##name(const Conv a) { to_columns<T>(a); } \
	extern "C" __global__ void from_columns_##name(const Conv a) { from_columns<T>(a); }
EACH_FLOAT(EXPORT)
