// CUPTI, loaded at run time: the types of its functions, in a table that record.go fills, and the
// collector of its buffers.
#ifndef GODDP_CUPTI_COLLECT_H
#define GODDP_CUPTI_COLLECT_H

#include <stddef.h>
#include <stdint.h>

typedef void (*buffer_requested)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*buffer_completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

#define CUPTI_FUNCTIONS(X) \
	X(cuptiGetVersion, (uint32_t *)) \
	X(cuptiGetTimestamp, (uint64_t *)) \
	X(cuptiGetResultString, (int, const char **)) \
	X(cuptiGetCallbackName, (int domain, uint32_t callback, const char **)) \
	X(cuptiActivityRegisterCallbacks, (buffer_requested, buffer_completed)) \
	X(cuptiActivityEnable, (int kind)) \
	X(cuptiActivityDisable, (int kind)) \
	X(cuptiActivityFlushAll, (uint32_t flag)) \
	X(cuptiActivityGetNextRecord, (uint8_t *buffer, size_t valid, uint8_t **record)) \
	X(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *)) \
	X(cuptiActivityEnableDriverApi, (uint32_t callback, uint8_t enable)) /* this and the next: null before CUDA 12.5 */ \
	X(cuptiActivityEnableRuntimeApi, (uint32_t callback, uint8_t enable))

typedef struct {
#define X(name, args) int (*name) args;
	CUPTI_FUNCTIONS(X)
#undef X
} cupti;

enum { CUPTI_FUNCTION_COUNT = sizeof(cupti) / sizeof(void *) };

const char *cupti_symbol(int i);
void cupti_set(cupti *c, int i, void *f);

uint32_t cupti_version(cupti *c);
const char *cupti_error(cupti *c, int code);
int cupti_enable(cupti *c);
void cupti_disable(cupti *c);
size_t cupti_dropped(cupti *c);

// cupti_offset returns in *ns what must be added to CUPTI's times for times of CLOCK_REALTIME.
int cupti_offset(cupti *c, int64_t *ns);

// cupti_flush passes all of CUPTI's buffers to the collector before it returns. Records of unfinished
// work are incomplete and will not be completed. It does not wait for the GPU.
int cupti_flush(cupti *c);

// A buffer that CUPTI has completed.
typedef struct buffer {
	struct buffer *next;
	uint8_t *data;
	size_t valid;
} buffer;

// buffer_take returns the oldest buffer of the collector, or null. The caller must free it.
buffer *buffer_take(void);
void buffer_free(buffer *b);

enum { ACTIVITY_KERNEL, ACTIVITY_MEMCPY, ACTIVITY_MEMSET, ACTIVITY_CALL }; // Kind in activity.go

// An activity, decoded from a record.
typedef struct {
	int kind;
	uint8_t copy; // CUpti_ActivityMemcpyKind
	uint32_t device, stream, graph, correlation, thread;
	uint64_t begin, end, bytes;
	const char *name; // CUPTI's; null for copies and memsets
} activity;

// buffer_next reads the next activity of a buffer. *record is null before the first. It returns 0 after
// the last.
int buffer_next(cupti *c, buffer *b, uint8_t **record, activity *a);

#endif
