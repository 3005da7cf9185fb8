// libcuda, loaded at run time: the types of its functions, in a table that driver.go fills. Handles
// are pointer-sized integers, which Go's garbage collector ignores.
//
// The current context is a thread property, and goroutines move between threads, so every wrapper
// takes the context and makes it current if needed. Names include the version of the ABI (_v2).
#ifndef GODDP_DRIVER_H
#define GODDP_DRIVER_H

#include <stddef.h>
#include <stdint.h>

// launch_attribute and launch_config have the layout of CUlaunchAttribute and CUlaunchConfig.
typedef struct {
	int id;
	union { char pad[64]; int value; } __attribute__((aligned(8)));
} launch_attribute;
typedef struct {
	unsigned grid[3], block[3], shared;
	uintptr_t stream;
	const launch_attribute *attributes;
	unsigned count;
} launch_config;

#define DRIVER_FUNCTIONS(X) \
	X(cuInit, "cuInit", (unsigned)) \
	X(cuDriverGetVersion, "cuDriverGetVersion", (int *)) \
	X(cuGetErrorName, "cuGetErrorName", (int, const char **)) \
	X(cuGetErrorString, "cuGetErrorString", (int, const char **)) \
	X(cuDeviceGetCount, "cuDeviceGetCount", (int *)) \
	X(cuDeviceGet, "cuDeviceGet", (int *, int)) \
	X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int)) \
	X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, int)) \
	X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int)) \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (uintptr_t *, int)) \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int)) \
	X(cuCtxGetCurrent, "cuCtxGetCurrent", (uintptr_t *)) \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", (uintptr_t)) \
	X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *, int *)) \
	X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (uintptr_t *, unsigned, int)) \
	X(cuStreamDestroy, "cuStreamDestroy_v2", (uintptr_t)) \
	X(cuStreamQuery, "cuStreamQuery", (uintptr_t)) \
	X(cuStreamWaitEvent, "cuStreamWaitEvent", (uintptr_t, uintptr_t, unsigned)) \
	X(cuStreamIsCapturing, "cuStreamIsCapturing", (uintptr_t, int *)) \
	X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (uintptr_t, int)) \
	X(cuStreamEndCapture, "cuStreamEndCapture", (uintptr_t, uintptr_t *)) \
	X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (uintptr_t *, uintptr_t, unsigned long long)) \
	X(cuGraphDestroy, "cuGraphDestroy", (uintptr_t)) \
	X(cuGraphLaunch, "cuGraphLaunch", (uintptr_t, uintptr_t)) \
	X(cuGraphExecDestroy, "cuGraphExecDestroy", (uintptr_t)) \
	X(cuEventCreate, "cuEventCreate", (uintptr_t *, unsigned)) \
	X(cuEventDestroy, "cuEventDestroy_v2", (uintptr_t)) \
	X(cuEventRecord, "cuEventRecord", (uintptr_t, uintptr_t)) \
	X(cuEventQuery, "cuEventQuery", (uintptr_t)) \
	X(cuEventElapsedTime, "cuEventElapsedTime", (float *, uintptr_t, uintptr_t)) \
	X(cuMemAlloc, "cuMemAlloc_v2", (uint64_t *, size_t)) \
	X(cuMemFree, "cuMemFree_v2", (uint64_t)) \
	X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *)) \
	X(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned)) \
	X(cuMemFreeHost, "cuMemFreeHost", (void *)) \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, uintptr_t)) \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, uintptr_t)) \
	X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (uint64_t, uint64_t, size_t, uintptr_t)) \
	X(cuMemsetD8Async, "cuMemsetD8Async", (uint64_t, unsigned char, size_t, uintptr_t)) \
	X(cuModuleLoadData, "cuModuleLoadData", (uintptr_t *, const void *)) \
	X(cuModuleUnload, "cuModuleUnload", (uintptr_t)) \
	X(cuModuleGetFunction, "cuModuleGetFunction", (uintptr_t *, uintptr_t, const char *)) \
	X(cuLaunchKernel, "cuLaunchKernel", (uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
		unsigned, uintptr_t, void **, void **)) \
	X(cuLaunchKernelEx, "cuLaunchKernelEx", (const launch_config *, uintptr_t, void **, void **))

typedef struct {
#define X(name, symbol, args) int (*name) args;
	DRIVER_FUNCTIONS(X)
#undef X
} driver;

// The symbols of a table's fields, in order.
static const char *const driver_symbols[] = {
#define X(name, symbol, args) symbol,
	DRIVER_FUNCTIONS(X)
#undef X
};

static inline int driver_count(void) { return sizeof driver_symbols / sizeof *driver_symbols; }
static inline const char *driver_symbol(int i) { return driver_symbols[i]; }
static inline void driver_set(driver *d, int i, void *f) { ((void **)d)[i] = f; }

// Without a context.

static inline int drv_init(driver *d) { return d->cuInit(0); }
static inline int drv_version(driver *d, int *v) { return d->cuDriverGetVersion(v); }
static inline int drv_device_count(driver *d, int *n) { return d->cuDeviceGetCount(n); }
static inline int drv_device(driver *d, int *dev, int ordinal) { return d->cuDeviceGet(dev, ordinal); }
static inline int drv_bus_id(driver *d, char *id, int size, int dev) { return d->cuDeviceGetPCIBusId(id, size, dev); }
static inline int drv_device_name(driver *d, char *name, int size, int dev) { return d->cuDeviceGetName(name, size, dev); }
static inline int drv_attribute(driver *d, int *v, int which, int dev) { return d->cuDeviceGetAttribute(v, which, dev); }
static inline int drv_retain(driver *d, uintptr_t *ctx, int dev) { return d->cuDevicePrimaryCtxRetain(ctx, dev); }
static inline int drv_release(driver *d, int dev) { return d->cuDevicePrimaryCtxRelease(dev); }

// The name and the description of an error: static text, or null.
static inline const char *drv_error_name(driver *d, int code) {
	const char *s = NULL;
	return d->cuGetErrorName(code, &s) == 0 ? s : NULL;
}
static inline const char *drv_error_text(driver *d, int code) {
	const char *s = NULL;
	return d->cuGetErrorString(code, &s) == 0 ? s : NULL;
}

// Within a context.

static inline int drv_enter(driver *d, uintptr_t ctx) {
	uintptr_t current = 0;
	if (d->cuCtxGetCurrent(&current) == 0 && current == ctx) return 0;
	return d->cuCtxSetCurrent(ctx);
}

#define WITHIN(call) int r = drv_enter(d, ctx); return r != 0 ? r : (call)

static inline int drv_priorities(driver *d, uintptr_t ctx, int *least, int *greatest) {
	WITHIN(d->cuCtxGetStreamPriorityRange(least, greatest));
}
static inline int drv_stream_create(driver *d, uintptr_t ctx, uintptr_t *s, int priority) {
	WITHIN(d->cuStreamCreateWithPriority(s, 1 /* CU_STREAM_NON_BLOCKING */, priority));
}
static inline int drv_stream_destroy(driver *d, uintptr_t ctx, uintptr_t s) { WITHIN(d->cuStreamDestroy(s)); }
static inline int drv_stream_query(driver *d, uintptr_t ctx, uintptr_t s) { WITHIN(d->cuStreamQuery(s)); }
static inline int drv_stream_wait(driver *d, uintptr_t ctx, uintptr_t s, uintptr_t e) { WITHIN(d->cuStreamWaitEvent(s, e, 0)); }
static inline int drv_stream_capturing(driver *d, uintptr_t ctx, uintptr_t s, int *status) {
	WITHIN(d->cuStreamIsCapturing(s, status));
}
// drv_capture_begin makes a stream capture its work instead of running it. In the relaxed mode the
// thread may still allocate memory and query events outside the capture.
static inline int drv_capture_begin(driver *d, uintptr_t ctx, uintptr_t s) {
	WITHIN(d->cuStreamBeginCapture(s, 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */));
}
// drv_capture_end ends the capture and makes an executable graph of it.
static inline int drv_capture_end(driver *d, uintptr_t ctx, uintptr_t s, uintptr_t *exec) {
	uintptr_t graph = 0;
	int r = drv_enter(d, ctx);
	if (r == 0) r = d->cuStreamEndCapture(s, &graph);
	if (r != 0) return r;
	r = d->cuGraphInstantiate(exec, graph, 0);
	d->cuGraphDestroy(graph);
	return r;
}
static inline int drv_graph_launch(driver *d, uintptr_t ctx, uintptr_t exec, uintptr_t s) { WITHIN(d->cuGraphLaunch(exec, s)); }
static inline int drv_graph_destroy(driver *d, uintptr_t ctx, uintptr_t exec) { WITHIN(d->cuGraphExecDestroy(exec)); }
static inline int drv_event_create(driver *d, uintptr_t ctx, uintptr_t *e, unsigned flags) { WITHIN(d->cuEventCreate(e, flags)); }
static inline int drv_event_destroy(driver *d, uintptr_t ctx, uintptr_t e) { WITHIN(d->cuEventDestroy(e)); }
static inline int drv_event_record(driver *d, uintptr_t ctx, uintptr_t e, uintptr_t s) { WITHIN(d->cuEventRecord(e, s)); }
static inline int drv_event_query(driver *d, uintptr_t ctx, uintptr_t e) { WITHIN(d->cuEventQuery(e)); }
static inline int drv_event_elapsed(driver *d, uintptr_t ctx, float *ms, uintptr_t from, uintptr_t to) {
	WITHIN(d->cuEventElapsedTime(ms, from, to));
}
static inline int drv_alloc(driver *d, uintptr_t ctx, uint64_t *p, size_t n) { WITHIN(d->cuMemAlloc(p, n)); }
static inline int drv_free(driver *d, uintptr_t ctx, uint64_t p) { WITHIN(d->cuMemFree(p)); }
static inline int drv_mem_info(driver *d, uintptr_t ctx, size_t *free, size_t *total) { WITHIN(d->cuMemGetInfo(free, total)); }
static inline int drv_host_alloc(driver *d, uintptr_t ctx, void **p, size_t n) {
	WITHIN(d->cuMemHostAlloc(p, n, 1 /* CU_MEMHOSTALLOC_PORTABLE */));
}
static inline int drv_host_free(driver *d, uintptr_t ctx, void *p) { WITHIN(d->cuMemFreeHost(p)); }
static inline int drv_copy_in(driver *d, uintptr_t ctx, uint64_t dst, const void *src, size_t n, uintptr_t s) {
	WITHIN(d->cuMemcpyHtoDAsync(dst, src, n, s));
}
static inline int drv_copy_out(driver *d, uintptr_t ctx, void *dst, uint64_t src, size_t n, uintptr_t s) {
	WITHIN(d->cuMemcpyDtoHAsync(dst, src, n, s));
}
static inline int drv_copy(driver *d, uintptr_t ctx, uint64_t dst, uint64_t src, size_t n, uintptr_t s) {
	WITHIN(d->cuMemcpyDtoDAsync(dst, src, n, s));
}
static inline int drv_clear(driver *d, uintptr_t ctx, uint64_t dst, size_t n, uintptr_t s) {
	WITHIN(d->cuMemsetD8Async(dst, 0, n, s));
}
static inline int drv_module_load(driver *d, uintptr_t ctx, uintptr_t *m, const void *image) {
	WITHIN(d->cuModuleLoadData(m, image));
}
static inline int drv_module_unload(driver *d, uintptr_t ctx, uintptr_t m) { WITHIN(d->cuModuleUnload(m)); }
static inline int drv_function(driver *d, uintptr_t ctx, uintptr_t *f, uintptr_t m, const char *name) {
	WITHIN(d->cuModuleGetFunction(f, m, name));
}

// drv_launch runs a kernel that takes one structure by value.
static inline int drv_launch(driver *d, uintptr_t ctx, uintptr_t f, uintptr_t s, unsigned gx, unsigned gy, unsigned gz,
		unsigned bx, unsigned by, unsigned bz, const void *args, size_t size) {
	enum { END, POINTER, SIZE };
	void *extra[] = {(void *)POINTER, (void *)args, (void *)SIZE, &size, (void *)END};
	WITHIN(d->cuLaunchKernel(f, gx, gy, gz, bx, by, bz, 0, s, NULL, extra));
}
// drv_launch_early is drv_launch for a kernel that may start before the one in front of it has ended.
static inline int drv_launch_early(driver *d, uintptr_t ctx, uintptr_t f, uintptr_t s, unsigned gx, unsigned gy, unsigned gz,
		unsigned bx, unsigned by, unsigned bz, const void *args, size_t size) {
	enum { END, POINTER, SIZE };
	void *extra[] = {(void *)POINTER, (void *)args, (void *)SIZE, &size, (void *)END};
	launch_attribute early = {.id = 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */, .value = 1};
	launch_config c = {{gx, gy, gz}, {bx, by, bz}, 0, s, &early, 1};
	WITHIN(d->cuLaunchKernelEx(&c, f, NULL, extra));
}

#endif
