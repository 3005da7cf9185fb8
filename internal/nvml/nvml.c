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

enum { CLOCK_SM = 1, TEMPERATURE_GPU = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0, P2P_READ = 0, P2P_OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

int nvml_find(nvml *n, unsigned index, nvml_device *d) { return n->nvmlDeviceGetHandleByIndex_v2(index, d); }
int nvml_find_bus_id(nvml *n, const char *id, nvml_device *d) { return n->nvmlDeviceGetHandleByPciBusId_v2(id, d); }

int nvml_read_name(nvml *n, nvml_device d, char *name, unsigned size, nvml_pci *pci) {
	int code = n->nvmlDeviceGetName(d, name, size);
	return code != 0 ? code : n->nvmlDeviceGetPciInfo_v3(d, pci);
}

int nvml_read_state(nvml *n, nvml_device d, nvml_state *s) {
	memset(s, 0, sizeof *s);
	// Some GPUs, and virtual ones, do not have all of these.
	int code = n->nvmlDeviceGetClockInfo(d, CLOCK_SM, &s->clock);
	if (code != 0) s->clock = 0;
	if (n->nvmlDeviceGetMaxClockInfo(d, CLOCK_SM, &s->max_clock) != 0) s->max_clock = 0;
	if (n->nvmlDeviceGetCurrentClocksThrottleReasons(d, &s->slowdowns) != 0) s->slowdowns = 0;
	if (n->nvmlDeviceGetTemperature(d, TEMPERATURE_GPU, &s->temperature) != 0) s->temperature = 0;
	if (n->nvmlDeviceGetPowerUsage(d, &s->power) != 0) s->power = 0;
	if (n->nvmlDeviceGetEnforcedPowerLimit(d, &s->power_limit) != 0) s->power_limit = 0;
	if (n->nvmlDeviceGetTotalEccErrors(d, ECC_UNCORRECTED, ECC_VOLATILE, &s->ecc_errors) != 0) s->ecc_errors = 0;
	for (unsigned i = 0; i < NVML_NVLINKS; i++) {
		unsigned active = 0;
		if (n->nvmlDeviceGetNvLinkState(d, i, &active) == 0 && active) s->nvlinks++;
	}
	return code == NOT_SUPPORTED ? 0 : code;
}

unsigned nvml_read_utilization(nvml *n, nvml_device d) {
	nvml_utilization u;
	return n->nvmlDeviceGetUtilizationRates(d, &u) == 0 ? u.gpu : 0;
}

unsigned nvml_count_processes(nvml *n, nvml_device d) {
	nvml_process processes[NVML_PROCESSES];
	unsigned count = NVML_PROCESSES;
	int code = n->nvmlDeviceGetComputeRunningProcesses_v3(d, &count, processes);
	return code == 0 || code == INSUFFICIENT_SIZE ? count : 0;
}

int nvml_blocked(nvml *n, nvml_device from, nvml_device to) {
	int status;
	return n->nvmlDeviceGetP2PStatus(from, to, P2P_READ, &status) == 0 && status != P2P_OK;
}
