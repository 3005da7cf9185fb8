//go:build cgo && linux

#include "collect.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const symbols[] = {
#define X(name, args) #name,
	CUPTI_FUNCTIONS(X)
#undef X
};

const char *cupti_symbol(int i) { return symbols[i]; }
void cupti_set(cupti *c, int i, void *f) { ((void **)c)[i] = f; }

uint32_t cupti_version(cupti *c) {
	uint32_t v = 0;
	c->cuptiGetVersion(&v);
	return v;
}

const char *cupti_error(cupti *c, int code) {
	const char *text = NULL;
	return c->cuptiGetResultString(code, &text) == 0 ? text : NULL;
}

// The collector's buffers. CUPTI's thread appends to the list, and buffer_take removes from it. held is the total
// size of buffers requested and not freed.
enum { BUFFER_SIZE = 1 << 20, MOST_HELD = 256 << 20 };
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static buffer *first, **last = &first;
static size_t held;

// requested provides a buffer to CUPTI. Beyond MOST_HELD it provides none, and CUPTI drops and counts the
// records.
static void requested(uint8_t **data, size_t *size, size_t *most_records) {
	*data = NULL, *size = 0, *most_records = 0;
	pthread_mutex_lock(&mu);
	int fits = held + BUFFER_SIZE <= MOST_HELD;
	if (fits) held += BUFFER_SIZE;
	pthread_mutex_unlock(&mu);
	if (!fits) return;
	*data = aligned_alloc(8, BUFFER_SIZE);
	if (*data != NULL) {
		*size = BUFFER_SIZE;
		return;
	}
	pthread_mutex_lock(&mu);
	held -= BUFFER_SIZE;
	pthread_mutex_unlock(&mu);
}

static void completed(void *context, uint32_t stream, uint8_t *data, size_t size, size_t valid) {
	(void)context, (void)stream, (void)size;
	buffer *b = malloc(sizeof *b);
	if (b == NULL) return; // the buffer is lost, and stays counted
	*b = (buffer){NULL, data, valid};
	pthread_mutex_lock(&mu);
	*last = b;
	last = &b->next;
	pthread_mutex_unlock(&mu);
}

buffer *buffer_take(void) {
	pthread_mutex_lock(&mu);
	buffer *b = first;
	if (b != NULL) {
		first = b->next;
		if (first == NULL) last = &first;
	}
	pthread_mutex_unlock(&mu);
	return b;
}

void buffer_free(buffer *b) {
	free(b->data);
	free(b);
	pthread_mutex_lock(&mu);
	held -= BUFFER_SIZE;
	pthread_mutex_unlock(&mu);
}

// Kinds of records (CUpti_ActivityKind). The kind KERNEL would make kernels run one at a time.
// The kind GRAPH_TRACE would replace the records of a graph's nodes by one.
enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, CONCURRENT_KERNEL = 10, MEMCPY_PEER = 22 };

static const int kinds[] = {MEMCPY, MEMSET, CONCURRENT_KERNEL, MEMCPY_PEER};
enum { KINDS = sizeof kinds / sizeof *kinds };

// The driver and runtime functions that enqueue work or may block the host, by their CUpti_driver_api_trace_cbid
// and CUpti_runtime_api_trace_cbid. cuBLAS and NCCL call the runtime library. Other functions are not recorded,
// because a waiting host polls events continuously.
static const uint32_t driver_calls[] = {
	307, 652, 514,      // cuLaunchKernel, cuLaunchKernelEx, cuGraphLaunch
	277, 279, 281, 216, // cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyDtoDAsync_v2, cuMemsetD8Async
	243, 245, 39, 38,   // cuMemAlloc_v2, cuMemFree_v2, cuMemHostAlloc, cuMemFreeHost
	17, 121, 126,       // cuCtxSynchronize, cuEventSynchronize, cuStreamSynchronize
	19, 678, 513, 643,  // cuModuleLoadData, cuLibraryLoadData, cuGraphInstantiate, cuGraphInstantiateWithFlags
};
static const uint32_t runtime_calls[] = {
	211, 430, 311, // cudaLaunchKernel, cudaLaunchKernelExC, cudaGraphLaunch
	41, 51,        // cudaMemcpyAsync, cudaMemsetAsync
};

// enable_calls enables the records of only n functions.
static int enable_calls(cupti *c, int kind, int (*enable)(uint32_t, uint8_t), const uint32_t *calls, size_t n) {
	if (enable == NULL) return 0;
	int r = c->cuptiActivityEnable(kind);
	if (r != 0) return r;
	for (uint32_t i = 1; enable(i, 0) == 0; i++) continue; // to the end of the numbers
	for (size_t i = 0; i < n; i++) enable(calls[i], 1);
	return 0;
}

int cupti_enable(cupti *c) {
	int r = c->cuptiActivityRegisterCallbacks(requested, completed);
	for (int i = 0; i < KINDS && r == 0; i++) r = c->cuptiActivityEnable(kinds[i]);
	if (r == 0) r = enable_calls(c, DRIVER, c->cuptiActivityEnableDriverApi, driver_calls, sizeof driver_calls / sizeof *driver_calls);
	if (r == 0) r = enable_calls(c, RUNTIME, c->cuptiActivityEnableRuntimeApi, runtime_calls, sizeof runtime_calls / sizeof *runtime_calls);
	if (r != 0) cupti_disable(c);
	return r;
}

void cupti_disable(cupti *c) {
	for (int i = 0; i < KINDS; i++) c->cuptiActivityDisable(kinds[i]);
	c->cuptiActivityDisable(DRIVER);
	c->cuptiActivityDisable(RUNTIME);
}

size_t cupti_dropped(cupti *c) {
	size_t n = 0;
	c->cuptiActivityGetNumDroppedRecords(NULL, 0, &n);
	return n;
}

int cupti_flush(cupti *c) { return c->cuptiActivityFlushAll(1 /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */); }

static int64_t host_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int cupti_offset(cupti *c, int64_t *ns) {
	int64_t best = INT64_MAX;
	for (int i = 0; i < 5; i++) { // the fastest try is the most precise
		uint64_t t;
		int64_t before = host_now();
		int r = c->cuptiGetTimestamp(&t);
		int64_t took = host_now() - before;
		if (r != 0) return r;
		if (took < best) best = took, *ns = before + took / 2 - (int64_t)t;
	}
	return 0;
}

#define READ(field, offset) memcpy(&(field), r + (offset), sizeof(field))

// read reads a record. It returns 0 if it is of no kind that cupti_enable enabled, or incomplete.
static int read_record(cupti *c, const uint8_t *r, activity *a) {
	uint32_t kind, callback;
	*a = (activity){0};
	READ(kind, 0);
	switch (kind) {
	case CONCURRENT_KERNEL:
		a->kind = ACTIVITY_KERNEL;
		READ(a->begin, 16), READ(a->end, 24), READ(a->device, 40), READ(a->stream, 48), READ(a->correlation, 92);
		READ(a->name, 104), READ(a->graph, 156);
		break;
	case MEMCPY:
	case MEMCPY_PEER:
		a->kind = ACTIVITY_MEMCPY;
		READ(a->copy, 4), READ(a->bytes, 8), READ(a->begin, 16), READ(a->end, 24), READ(a->device, 32), READ(a->stream, 40);
		if (kind == MEMCPY) READ(a->correlation, 44), READ(a->graph, 72);
		else READ(a->correlation, 60), READ(a->graph, 80);
		break;
	case MEMSET:
		a->kind = ACTIVITY_MEMSET;
		READ(a->bytes, 8), READ(a->begin, 16), READ(a->end, 24), READ(a->device, 32), READ(a->stream, 40);
		READ(a->correlation, 44), READ(a->graph, 72);
		break;
	case DRIVER:
	case RUNTIME:
		a->kind = ACTIVITY_CALL;
		READ(callback, 4), READ(a->begin, 8), READ(a->end, 16), READ(a->thread, 28), READ(a->correlation, 32);
		c->cuptiGetCallbackName(kind == DRIVER ? 1 : 2 /* CUpti_CallbackDomain */, callback, &a->name);
		break;
	default:
		return 0;
	}
	return a->begin != 0 && a->end != 0;
}

int buffer_next(cupti *c, buffer *b, uint8_t **record, activity *a) {
	while (c->cuptiActivityGetNextRecord(b->data, b->valid, record) == 0)
		if (read_record(c, *record, a)) return 1;
	return 0;
}
