// What the fake libcuda and libnccl report to the fake libcupti. No library without libcupti listens.
#include <stdint.h>

enum { OBSERVED_KERNEL, OBSERVED_COPY, OBSERVED_CLEAR, OBSERVED_CALL };

typedef struct {
	int kind;
	const char *name;  // of a kernel
	uint32_t callback; // of a call: its CUpti_driver_api_trace_cbid
	uint8_t direction; // of a copy: its CUpti_ActivityMemcpyKind
	uint64_t bytes;
	uint32_t device, stream, graph, correlation;
	int64_t begin, end; // nanoseconds since 1970
} observed;

// fakegpu_observe sets the listener. It is called on the threads of streams, and of callers of the driver.
void fakegpu_observe(void (*listen)(const observed *));

// fakegpu_ran reports work that the calling stream's thread has run since o.begin. The caller leaves the
// device, stream, graph, correlation and end to it.
void fakegpu_ran(observed o);

// fakegpu_now returns the time in nanoseconds since 1970.
int64_t fakegpu_now(void);
