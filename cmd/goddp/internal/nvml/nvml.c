//go:build cgo && linux

#include "nvml.h"

#include <string.h>

const char *nvml_symbol(int i) {
	static const char *const names[] = {
#define X(name, args) #name,
		NVML_FUNCTIONS(X)
#undef X
	};
	return names[i];
}

void nvml_set(nvml *n, int i, void *f) { ((void **)n)[i] = f; }
int nvml_init(nvml *n) { return n->nvmlInit_v2(); }
void nvml_shutdown(nvml *n) { n->nvmlShutdown(); }
int nvml_driver(nvml *n, char *text, unsigned size) { return n->nvmlSystemGetDriverVersion(text, size); }
int nvml_count(nvml *n, unsigned *count) { return n->nvmlDeviceGetCount_v2(count); }

enum { CLOCK_SM = 1, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0, P2P_READ = 0, P2P_OK = 0, INSUFFICIENT_SIZE = 7 };

int nvml_read(nvml *n, unsigned index, nvml_gpu *gpu) {
	nvml_device d;
	memset(gpu, 0, sizeof *gpu);
	int code = n->nvmlDeviceGetHandleByIndex_v2(index, &d);
	if (code == 0) code = n->nvmlDeviceGetName(d, gpu->name, sizeof gpu->name);
	if (code == 0) code = n->nvmlDeviceGetPciInfo_v3(d, &gpu->pci);
	if (code != 0) return code;
	// Some GPUs, and virtual ones, do not have all of these.
	if (n->nvmlDeviceGetClockInfo(d, CLOCK_SM, &gpu->clock) != 0) gpu->clock = 0;
	if (n->nvmlDeviceGetMaxClockInfo(d, CLOCK_SM, &gpu->max_clock) != 0) gpu->max_clock = 0;
	if (n->nvmlDeviceGetCurrentClocksThrottleReasons(d, &gpu->slowdowns) != 0) gpu->slowdowns = 0;
	if (n->nvmlDeviceGetTotalEccErrors(d, ECC_UNCORRECTED, ECC_VOLATILE, &gpu->ecc_errors) != 0) gpu->ecc_errors = 0;
	if (n->nvmlDeviceGetUtilizationRates(d, &gpu->utilization) != 0) gpu->utilization.gpu = 0;
	nvml_process processes[NVML_PROCESSES];
	unsigned count = NVML_PROCESSES;
	code = n->nvmlDeviceGetComputeRunningProcesses_v3(d, &count, processes);
	gpu->processes = code == 0 || code == INSUFFICIENT_SIZE ? count : 0;
	for (unsigned i = 0; i < NVML_NVLINKS; i++) {
		unsigned active = 0;
		if (n->nvmlDeviceGetNvLinkState(d, i, &active) == 0 && active) gpu->nvlinks++;
	}
	return 0;
}

int nvml_blocked(nvml *n, unsigned from, unsigned to) {
	nvml_device a, b;
	int status;
	if (n->nvmlDeviceGetHandleByIndex_v2(from, &a) != 0 || n->nvmlDeviceGetHandleByIndex_v2(to, &b) != 0) return 0;
	return n->nvmlDeviceGetP2PStatus(a, b, P2P_READ, &status) == 0 && status != P2P_OK;
}
