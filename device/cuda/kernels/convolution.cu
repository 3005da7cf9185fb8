// Convolution as matrix products. im2col writes the elements that each position of the result depends on as
// columns; col2im is its adjoint. The columns of several images are concatenated.

struct Conv {
	u64 to, from, bias;
	u64 first, images; // of the batch
	u64 c, h, w;       // of an image
	u64 group;         // the number of channels in a group
	u64 kh, kw, oh, ow;
	i64 sh, sw, ph, pw, dh, dw; // stride, padding, dilation
	u64 last;                   // whether images, results and taps have channels last
	Accum acc;
};

// Place is the place of element e of images whose channels have l elements.
struct Place {
	u64 image, c, at;
	__device__ Place(u64 e, u64 channels, u64 l, u64 last) {
		const u64 row = divide(e, last ? channels : l), rest = e - row * (last ? channels : l);
		image = divide(row, last ? l : channels);
		const u64 other = row - image * (last ? l : channels);
		c = last ? rest : other;
		at = last ? other : rest;
	}
};

// element is the inverse of Place.
__device__ inline u64 element(u64 image, u64 c, u64 at, u64 channels, u64 l, u64 last) {
	return last ? (image * l + at) * channels + c : (image * channels + c) * l + at;
}

// im2col writes columns [c·kh·kw images·oh·ow] of images. The rows of a group are in the order of its weight.
template <class T> __device__ inline void im2col(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l, taps = a.kh * a.kw, n = a.c * taps * width;
	for (u64 e = global_thread(); e < n; e += global_threads()) {
		const u64 row = divide(e, width), col = e - row * width;
		const u64 image = divide(col, l), at = col - image * l;
		const u64 oy = divide(at, a.ow), ox = at - oy * a.ow;
		const u64 group = divide(row, a.group * taps), within = row - group * a.group * taps;
		const u64 major = divide(within, a.last ? a.group : taps), minor = within - major * (a.last ? a.group : taps);
		const u64 c = group * a.group + (a.last ? minor : major), tap = a.last ? major : minor;
		const u64 ky = divide(tap, a.kw), kx = tap - ky * a.kw;
		const i64 y = (i64)oy * a.sh - a.ph + (i64)ky * a.dh, x = (i64)ox * a.sw - a.pw + (i64)kx * a.dw;
		T v = T();
		if (y >= 0 && y < (i64)a.h && x >= 0 && x < (i64)a.w)
			v = ((const T *)a.from)[element(a.first + image, c, y * a.w + x, a.c, a.h * a.w, a.last)];
		((T *)a.to)[e] = v;
	}
}

// col2im accumulates into each element of images the sum of its copies in the columns, in the order of
// the taps.
template <class T> __device__ inline void col2im(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l, taps = a.kh * a.kw, plane = a.h * a.w, n = a.images * a.c * plane;
	for (u64 e = global_thread(); e < n; e += global_threads()) {
		const Place p(e, a.c, plane, a.last);
		const i64 y = divide(p.at, a.w), x = p.at - y * a.w;
		const u64 group = divide(p.c, a.group), c = p.c - group * a.group;
		double v = 0;
		for (u64 ky = 0; ky < a.kh; ky++) {
			const i64 dy = y + a.ph - (i64)ky * a.dh;
			if (dy < 0 || dy % a.sh || dy / a.sh >= (i64)a.oh) continue;
			for (u64 kx = 0; kx < a.kw; kx++) {
				const i64 dx = x + a.pw - (i64)kx * a.dw;
				if (dx < 0 || dx % a.sw || dx / a.sw >= (i64)a.ow) continue;
				const u64 tap = ky * a.kw + kx, row = group * a.group * taps + (a.last ? tap * a.group + c : c * taps + tap);
				v += up(((const T *)a.from)[row * width + p.image * l + dy / a.sh * a.ow + dx / a.sw]);
			}
		}
		accumulate((T *)a.to + (a.first * a.c * plane + e), a.acc, v);
	}
}

// to_columns copies results to columns [c images·oh·ow]. from_columns copies such columns back and adds
// the bias of each channel.
template <class T> __device__ inline void to_columns(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l;
	for (u64 e = global_thread(); e < a.c * width; e += global_threads()) {
		const u64 c = divide(e, width), col = e - c * width, image = divide(col, l);
		((T *)a.to)[e] = ((const T *)a.from)[element(a.first + image, c, col - image * l, a.c, l, a.last)];
	}
}

template <class T> __device__ inline void from_columns(const Conv &a) {
	const u64 l = a.oh * a.ow, width = a.images * l;
	for (u64 e = global_thread(); e < a.c * width; e += global_threads()) {
		const Place p(e, a.c, l, a.last);
		T v = ((const T *)a.from)[p.c * width + p.image * l + p.at];
		if (a.bias) v = down<T>(up(v) + up(((const T *)a.bias)[p.c]));
		((T *)a.to)[a.first * a.c * l + e] = v;
	}
}

// fold_images turns blocks of sh × sw pixels of images [n h w c] into pixels of a.group channels: those of the
// block's pixels, then zeros. The result is [n oh ow group]; its first block begins ph rows and pw columns before
// the image. A thread writes one pack.
template <class T> __device__ inline void fold_images(const Conv &a) {
	const u32 packs = a.group / Pack<T>::N, c = a.c, sw = a.sw;
	for (u64 e = global_thread(); e < a.images * a.oh * a.ow * packs; e += global_threads()) {
		const u64 place = divide(e, packs), line = divide(place, a.ow), image = divide(line, a.oh);
		const i64 top = (i64)(line - image * a.oh) * a.sh - a.ph, left = (i64)(place - line * a.ow) * a.sw - a.pw;
		Pack<T> p;
#pragma unroll
		for (int j = 0; j < Pack<T>::N; j++) {
			const u32 channel = (e - place * packs) * Pack<T>::N + j, pixel = channel / c, row = pixel / sw;
			const i64 y = top + row, x = left + (pixel - row * sw);
			p.v[j] = T();
			if (row < a.sh && y >= 0 && y < (i64)a.h && x >= 0 && x < (i64)a.w)
				p.v[j] = ((const T *)a.from)[((image * a.h + y) * a.w + x) * c + (channel - pixel * c)];
		}
		p.store((T *)a.to + e * Pack<T>::N);
	}
}

// unfold_weight accumulates the folded weight [images oh ow group] into the corresponding elements of the weight
// [images h w c].
template <class T> __device__ inline void unfold_weight(const Conv &a) {
	for (u64 e = global_thread(); e < a.images * a.h * a.w * a.c; e += global_threads()) {
		const u64 place = divide(e, a.c), c = e - place * a.c, line = divide(place, a.w), x = place - line * a.w;
		const u64 image = divide(line, a.h), y = line - image * a.h;
		const u64 from = ((image * a.oh + y / a.sh) * a.ow + x / a.sw) * a.group + (y % a.sh * a.sw + x % a.sw) * a.c + c;
		accumulate((T *)a.to + e, a.acc, (double)up(((const T *)a.from)[from]));
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void im2col_##name(const Conv a) { im2col<T>(a); } \
	extern "C" __global__ void col2im_##name(const Conv a) { col2im<T>(a); } \
	extern "C" __global__ void fold_images_##name(const Conv a) { fold_images<T>(a); } \
	extern "C" __global__ void unfold_weight_##name(const Conv a) { unfold_weight<T>(a); } \
	extern "C" __global__ void to_columns_##name(const Conv a) { to_columns<T>(a); } \
	extern "C" __global__ void from_columns_##name(const Conv a) { from_columns<T>(a); }
EACH_FLOAT(EXPORT)
