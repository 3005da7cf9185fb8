// A fake libcupti with the Activity interface of the real one, on what the fake libcuda and libnccl
// run. Its clock is 1000 seconds behind the host's, so that a forgotten conversion shows. It gives
// complete buffers back on a thread of its own. The records have the sizes of CUDA 12's:
// CUpti_ActivityKernel9, CUpti_ActivityMemcpy5, CUpti_ActivityMemset4, CUpti_ActivityAPI. Faults (see
// control.h):
//
//	cupti CODE         cuptiActivityEnable returns CODE
//	cupti_flush CODE   cuptiActivityFlushAll does nothing and returns CODE
//	cupti_version V    result of cuptiGetVersion
#define _GNU_SOURCE
#include "control.h"
#include "observe.h"
#include <pthread.h>

enum { OK = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12 };
enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, CONCURRENT_KERNEL = 10, MEMCPY_PEER = 22, KINDS = 64, CALLBACKS = 800 };
enum { KERNEL_SIZE = 208, MEMCPY_SIZE = 88, MEMSET_SIZE = 88, CALL_SIZE = 40 };

typedef void (*requested)(uint8_t **, size_t *, size_t *);
typedef void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static requested request;
static completed complete;
static uint8_t enabled[KINDS], callbacks[CALLBACKS];
static uint8_t *data; // the buffer that is being filled, or NULL
static size_t size, valid, dropped;

static uint64_t behind(int64_t t) { return t - 1000 * 1000000000LL; }

int cuptiGetVersion(uint32_t *v) {
	*v = setting("cupti_version", 130000);
	return OK;
}
int cuptiGetTimestamp(uint64_t *t) {
	*t = behind(fakegpu_now());
	return OK;
}
int cuptiGetResultString(int code, const char **text) {
	*text = code == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_OF_FAKEGPU";
	return OK;
}
int cuptiGetCallbackName(int domain, uint32_t callback, const char **name) {
	static const struct { uint32_t callback; const char *name; } names[] = {
		{307, "cuLaunchKernel"}, {514, "cuGraphLaunch"}, {216, "cuMemsetD8Async"},
		{277, "cuMemcpyHtoDAsync_v2"}, {279, "cuMemcpyDtoHAsync_v2"}, {281, "cuMemcpyDtoDAsync_v2"},
	};
	for (size_t i = 0; domain == 1 && i < sizeof names / sizeof *names; i++) {
		if (names[i].callback != callback) continue;
		*name = names[i].name;
		return OK;
	}
	return INVALID_PARAMETER;
}

static size_t record_size(uint32_t kind) {
	return kind == CONCURRENT_KERNEL ? KERNEL_SIZE : kind == MEMCPY ? MEMCPY_SIZE : kind == MEMSET ? MEMSET_SIZE : CALL_SIZE;
}

#define PUT(offset, type, value) *(type *)(r + (offset)) = (value)

static void listen(const observed *o) {
	static const uint32_t kinds[] = {[OBSERVED_KERNEL] = CONCURRENT_KERNEL, [OBSERVED_COPY] = MEMCPY, [OBSERVED_CLEAR] = MEMSET, [OBSERVED_CALL] = DRIVER};
	uint32_t kind = kinds[o->kind];
	size_t needs = record_size(kind);
	pthread_mutex_lock(&mu);
	if (!enabled[kind] || (kind == DRIVER && !callbacks[o->callback])) {
		pthread_mutex_unlock(&mu);
		return;
	}
	if (data != NULL && valid + needs > size) {
		complete(NULL, 0, data, size, valid);
		data = NULL;
	}
	if (data == NULL) {
		size_t most;
		valid = 0;
		request(&data, &size, &most);
		if (data == NULL) {
			dropped++;
			pthread_mutex_unlock(&mu);
			return;
		}
	}
	uint8_t *r = data + valid;
	valid += needs;
	memset(r, 0xee, needs);
	PUT(0, uint32_t, kind);
	int place = kind == DRIVER ? 8 : 16; // of the times
	PUT(place, uint64_t, behind(o->begin));
	PUT(place + 8, uint64_t, behind(o->end));
	switch (kind) {
	case CONCURRENT_KERNEL:
		PUT(40, uint32_t, o->device), PUT(48, uint32_t, o->stream), PUT(92, uint32_t, o->correlation);
		PUT(104, const char *, o->name), PUT(156, uint32_t, o->graph);
		break;
	case DRIVER:
		PUT(4, uint32_t, o->callback), PUT(28, uint32_t, gettid()), PUT(32, uint32_t, o->correlation);
		break;
	default:
		PUT(4, uint8_t, o->direction), PUT(8, uint64_t, o->bytes), PUT(32, uint32_t, o->device), PUT(40, uint32_t, o->stream);
		PUT(44, uint32_t, o->correlation), PUT(72, uint32_t, o->graph);
	}
	pthread_mutex_unlock(&mu);
}

int cuptiActivityRegisterCallbacks(requested r, completed c) {
	request = r, complete = c;
	fakegpu_observe(listen);
	return OK;
}
static int enable(uint8_t *all, uint32_t n, uint32_t count, int on) {
	if (n >= count) return INVALID_PARAMETER;
	pthread_mutex_lock(&mu);
	all[n] = on;
	pthread_mutex_unlock(&mu);
	return OK;
}
int cuptiActivityEnable(int kind) {
	if (kind == DRIVER) memset(callbacks, 1, sizeof callbacks);
	return enable(enabled, kind, KINDS, 1) != OK ? INVALID_PARAMETER : setting("cupti", OK);
}
int cuptiActivityDisable(int kind) { return enable(enabled, kind, KINDS, 0); }
int cuptiActivityEnableDriverApi(uint32_t callback, uint8_t on) { return enable(callbacks, callback, CALLBACKS, on); }
int cuptiActivityEnableRuntimeApi(uint32_t callback, uint8_t on) { return (void)on, callback < CALLBACKS ? OK : INVALID_PARAMETER; } // nobody calls the runtime library

static void *flush(void *unused) {
	pthread_mutex_lock(&mu);
	if (data != NULL) complete(NULL, 0, data, size, valid);
	data = NULL;
	pthread_mutex_unlock(&mu);
	return unused;
}
int cuptiActivityFlushAll(uint32_t flag) {
	(void)flag;
	int code = setting("cupti_flush", OK);
	if (code != OK) return code;
	pthread_t t;
	pthread_create(&t, NULL, flush, NULL);
	pthread_join(t, NULL);
	return OK;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, uint8_t **record) {
	uint8_t *next = *record == NULL ? buffer : *record + record_size(*(uint32_t *)*record);
	if (next >= buffer + bytes) return MAX_LIMIT_REACHED;
	*record = next;
	return OK;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *n) {
	(void)context, (void)stream;
	pthread_mutex_lock(&mu);
	*n = dropped;
	dropped = 0;
	pthread_mutex_unlock(&mu);
	return OK;
}
