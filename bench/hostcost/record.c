//go:build cgo && linux

// The program opens libcuda, libcublasLt and libnccl at run time and finds their functions by dlsym. The
// dlsym below, which the program's linker prefers to libc's, gives it functions that append a call to the
// list before they make it.

#define _GNU_SOURCE
#include "record.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct call {
	int kind;
	int (*make)(const struct call *);
	uintptr_t h[10]; // handles and addresses
	size_t size;
	unsigned grid[7];
	char data[16]; // the factors of a product
	void *args;    // of a kernel, or the algorithm of a product
} call;

static call *calls;
static int count, space;
static __thread int listing; // whether calls of this thread are appended

void record_begin(void) { count = 0, listing = 1; }
void record_end(void) { listing = 0; }

int record_count(int kind) {
	int n = 0;
	for (int i = 0; i < count; i++) n += calls[i].kind == kind;
	return n;
}

// forward appends a call, and makes it. Calls that a library makes meanwhile are its own.
static int forward(call c) {
	if (!listing) return c.make(&c);
	if (count == space) calls = realloc(calls, (space = 2 * space + 64) * sizeof c);
	calls[count++] = c;
	listing = 0;
	int code = c.make(&c);
	listing = 1;
	return code;
}

static void *copy(const void *p, size_t n) { return listing ? memcpy(malloc(n), p, n) : (void *)p; }

// The libraries' functions.
static int (*launch_kernel)(uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **, void **);
typedef struct {
	unsigned grid[3], block[3], shared;
	uintptr_t stream;
} launch_config; // the first fields of CUlaunchConfig
static int (*launch_early)(const launch_config *, uintptr_t, void **, void **);
static int (*copy_in)(uintptr_t, uintptr_t, size_t, uintptr_t), (*copy_out)(uintptr_t, uintptr_t, size_t, uintptr_t);
static int (*copy_within)(uintptr_t, uintptr_t, size_t, uintptr_t), (*set_bytes)(uintptr_t, unsigned char, size_t, uintptr_t);
static int (*event_record)(uintptr_t, uintptr_t), (*event_query)(uintptr_t), (*stream_wait)(uintptr_t, uintptr_t, unsigned), (*stream_query)(uintptr_t);
static int (*matmul)(uintptr_t, uintptr_t, const void *, uintptr_t, uintptr_t, uintptr_t, uintptr_t, const void *, uintptr_t, uintptr_t,
	uintptr_t, uintptr_t, const void *, uintptr_t, size_t, uintptr_t);
static int (*set_attribute)(uintptr_t, int, const void *, size_t);
static int (*all_reduce)(uintptr_t, uintptr_t, size_t, int, int, uintptr_t, uintptr_t);

static uintptr_t last_stream; // of a kernel

static int make_kernel(const call *c) {
	enum { END, POINTER, SIZE };
	size_t size = c->size;
	void *extra[] = {(void *)POINTER, c->args, (void *)SIZE, &size, (void *)END};
	const unsigned *g = c->grid;
	return launch_kernel(c->h[0], g[0], g[1], g[2], g[3], g[4], g[5], g[6], c->h[1], NULL, extra);
}
static int list_kernel(uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, uintptr_t s,
		void **params, void **extra) {
	if (!listing || params) return launch_kernel(f, gx, gy, gz, bx, by, bz, shared, s, params, extra);
	last_stream = s;
	size_t size = *(size_t *)extra[3];
	return forward((call){KERNEL, make_kernel, .h = {f, s}, .size = size, .grid = {gx, gy, gz, bx, by, bz, shared}, .args = copy(extra[1], size)});
}

// list_early lists a kernel that may start early as another kernel: launching it takes as long.
static int list_early(const launch_config *c, uintptr_t f, void **params, void **extra) {
	if (!listing) return launch_early(c, f, params, extra);
	return list_kernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, params, extra);
}

static int make_product(const call *c) {
	const uintptr_t *h = c->h;
	// The members of h: library, description, A, its layout, B, its layout, C, D, the layout of both, scratch memory.
	return matmul(h[0], h[1], c->data, h[2], h[3], h[4], h[5], c->data + 8, h[6], h[8], h[7], h[8], c->args, h[9], c->size,
		(uintptr_t)c->grid[0] | (uintptr_t)c->grid[1] << 32);
}
static int list_product(uintptr_t t, uintptr_t op, const void *alpha, uintptr_t a, uintptr_t la, uintptr_t b, uintptr_t lb, const void *beta,
		uintptr_t c, uintptr_t lc, uintptr_t d, uintptr_t ld, const void *algo, uintptr_t work, size_t size, uintptr_t s) {
	enum { algo_size = 64 };
	if (!listing || lc != ld) return matmul(t, op, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, work, size, s);
	call p = {PRODUCT, make_product, .h = {t, op, a, la, b, lb, c, d, ld, work}, .size = size, .grid = {s, s >> 32}, .args = copy(algo, algo_size)};
	memcpy(p.data, alpha, 4);
	memcpy(p.data + 8, beta, 4);
	return forward(p);
}

static int make_attribute(const call *c) { return set_attribute(c->h[0], c->grid[0], &c->h[1], c->size); }
static int list_attribute(uintptr_t op, int which, const void *value, size_t size) {
	if (!listing || size != 8) return set_attribute(op, which, value, size);
	return forward((call){BIAS, make_attribute, .h = {op, *(uintptr_t *)value}, .size = size, .grid = {which}});
}

#define LIST_COPY(name, kind) \
	static int make_##name(const call *c) { return name(c->h[0], c->h[1], c->size, c->h[2]); } \
	static int list_##name(uintptr_t to, uintptr_t from, size_t n, uintptr_t s) { \
		return forward((call){kind, make_##name, .h = {to, from, s}, .size = n}); \
	}
LIST_COPY(copy_in, COPY)
LIST_COPY(copy_out, COPY)
LIST_COPY(copy_within, COPY)

static int make_set(const call *c) { return set_bytes(c->h[0], c->h[1], c->size, c->h[2]); }
static int list_set(uintptr_t to, unsigned char value, size_t n, uintptr_t s) {
	return forward((call){COPY, make_set, .h = {to, value, s}, .size = n});
}

static int make_event(const call *c) { return event_record(c->h[0], c->h[1]); }
static int list_event(uintptr_t e, uintptr_t s) { return forward((call){EVENT, make_event, .h = {e, s}}); }

static int make_wait(const call *c) { return stream_wait(c->h[0], c->h[1], 0); }
static int list_wait(uintptr_t s, uintptr_t e, unsigned flags) { return forward((call){WAIT, make_wait, .h = {s, e}}); }

static int make_reduce(const call *c) { return all_reduce(c->h[0], c->h[1], c->size, c->grid[0], c->grid[1], c->h[2], c->h[3]); }
static int list_reduce(uintptr_t src, uintptr_t dst, size_t n, int type, int op, uintptr_t comm, uintptr_t s) {
	return forward((call){REDUCE, make_reduce, .h = {src, dst, comm, s}, .size = n, .grid = {type, op}});
}

// A wait of the host is one call in the list: it asks until the event was reached.
static int make_poll(const call *c) {
	enum { not_ready = 600 };
	int code;
	while ((code = event_query(c->h[0])) == not_ready) {}
	return code;
}
static int list_poll(uintptr_t e) {
	int code = event_query(e);
	if (listing && code == 0) forward((call){POLL, make_poll, .h = {e}});
	return code;
}

void *dlsym(void *library, const char *name) {
	static void *(*libc)(void *, const char *);
	static const struct {
		const char *name;
		void **function, *list;
	} functions[] = {
		{"cuLaunchKernel", (void **)&launch_kernel, list_kernel},
		{"cuLaunchKernelEx", (void **)&launch_early, list_early},
		{"cuMemcpyHtoDAsync_v2", (void **)&copy_in, list_copy_in},
		{"cuMemcpyDtoHAsync_v2", (void **)&copy_out, list_copy_out},
		{"cuMemcpyDtoDAsync_v2", (void **)&copy_within, list_copy_within},
		{"cuMemsetD8Async", (void **)&set_bytes, list_set},
		{"cuEventRecord", (void **)&event_record, list_event},
		{"cuEventQuery", (void **)&event_query, list_poll},
		{"cuStreamWaitEvent", (void **)&stream_wait, list_wait},
		{"cuStreamQuery", (void **)&stream_query, NULL},
		{"cublasLtMatmul", (void **)&matmul, list_product},
		{"cublasLtMatmulDescSetAttribute", (void **)&set_attribute, list_attribute},
		{"ncclAllReduce", (void **)&all_reduce, list_reduce},
	};
#ifdef __aarch64__
	if (!libc) libc = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#else
	if (!libc) libc = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#endif
	void *f = libc(library, name);
	for (size_t i = 0; f && i < sizeof functions / sizeof *functions; i++) {
		if (strcmp(name, functions[i].name)) continue;
		if (!*functions[i].function) *functions[i].function = f;
		return functions[i].list ? functions[i].list : f;
	}
	return f;
}

static double seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int record_again(int n, double *took, double *each) {
	enum { not_ready = 600 };
	int code = 0;
	double start = seconds(), before = start;
	for (int step = 0; step < n; step++)
		for (const call *c = calls; c < calls + count; c++) {
			if ((code = c->make(c)) != 0) return code;
			if (!each) continue;
			double now = seconds();
			each[c->kind] += now - before;
			before = now;
		}
	while ((code = stream_query(last_stream)) == not_ready) {}
	*took = seconds() - start;
	return code;
}
