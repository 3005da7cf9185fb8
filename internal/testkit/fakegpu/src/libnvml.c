// A fake libnvidia-ml, with 16 healthy GPUs. Control can set the state of one of them, G:
//
//	nvml_throttle G V    the bits of its throttle reasons
//	nvml_clock G V       the clock of its multiprocessors
//	nvml_temperature G V its temperature
//	nvml_ecc G V         its uncorrected memory errors
//	nvml_processes G V   the processes on it
//	nvml_nvlinks G V     its active NVLinks
//	nvml_blocked G       it reads no other GPU's memory
#include "control.h"

enum { OK = 0, INVALID_ARGUMENT = 2, DEVICES = 16 };

typedef struct { int index; } device;
static device devices[DEVICES];

static long state(device *d, const char *word, long otherwise) { return line(word, 1, (const long[]){d->index}, otherwise); }

int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.95.05"), OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = DEVICES, OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **d) {
	if (i >= DEVICES) return INVALID_ARGUMENT;
	devices[i].index = i;
	return *d = &devices[i], OK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, device **d) {
	unsigned bus;
	return sscanf(id, "0000:%x:00.0", &bus) == 1 ? nvmlDeviceGetHandleByIndex_v2(bus, d) : INVALID_ARGUMENT;
}
int nvmlDeviceGetName(device *d, char *name, unsigned size) { return snprintf(name, size, "fakegpu %d", d->index), OK; }
int nvmlDeviceGetPciInfo_v3(device *d, char *pci) { return snprintf(pci + 36, 32, "00000000:%02X:00.0", d->index), OK; }
int nvmlDeviceGetClockInfo(device *d, int kind, unsigned *mhz) { return (void)kind, *mhz = state(d, "nvml_clock", 1980), OK; }
int nvmlDeviceGetMaxClockInfo(device *d, int kind, unsigned *mhz) { return (void)d, (void)kind, *mhz = 1980, OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *bits) { return *bits = state(d, "nvml_throttle", 1), OK; }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *degrees) { return (void)sensor, *degrees = state(d, "nvml_temperature", 45), OK; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *mw) { return (void)d, *mw = 350000, OK; }
int nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *mw) { return (void)d, *mw = 700000, OK; }
int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *n) {
	return (void)kind, (void)counter, *n = state(d, "nvml_ecc", 0), OK;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned *rates) { return (void)d, rates[0] = rates[1] = 0, OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, void *processes) { return (void)processes, *n = state(d, "nvml_processes", 0), OK; }
int nvmlDeviceGetNvLinkState(device *d, unsigned i, unsigned *active) { return *active = i < state(d, "nvml_nvlinks", 18), OK; }
int nvmlDeviceGetP2PStatus(device *a, device *b, int kind, int *status) { return (void)b, (void)kind, *status = state(a, "nvml_blocked", 0), OK; }
