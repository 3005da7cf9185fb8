// NVML, opened at run time: the functions' types as nvml.h of the driver's documentation states
// them, in a table that read.go fills.
#ifndef GODDP_NVML_H
#define GODDP_NVML_H

typedef struct nvml_device *nvml_device;

typedef struct {
	char legacy_id[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char id[32];
} nvml_pci;

typedef struct {
	unsigned gpu, memory;
} nvml_utilization;

typedef struct {
	unsigned pid;
	unsigned long long memory;
	unsigned gpu_instance, compute_instance;
} nvml_process;

#define NVML_FUNCTIONS(X) \
	X(nvmlInit_v2, (void)) \
	X(nvmlShutdown, (void)) \
	X(nvmlSystemGetDriverVersion, (char *, unsigned)) \
	X(nvmlDeviceGetCount_v2, (unsigned *)) \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvml_device *)) \
	X(nvmlDeviceGetHandleByPciBusId_v2, (const char *, nvml_device *)) \
	X(nvmlDeviceGetName, (nvml_device, char *, unsigned)) \
	X(nvmlDeviceGetPciInfo_v3, (nvml_device, nvml_pci *)) \
	X(nvmlDeviceGetClockInfo, (nvml_device, int kind, unsigned *)) \
	X(nvmlDeviceGetMaxClockInfo, (nvml_device, int kind, unsigned *)) \
	X(nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device, unsigned long long *)) \
	X(nvmlDeviceGetTemperature, (nvml_device, int sensor, unsigned *)) \
	X(nvmlDeviceGetPowerUsage, (nvml_device, unsigned *)) \
	X(nvmlDeviceGetEnforcedPowerLimit, (nvml_device, unsigned *)) \
	X(nvmlDeviceGetTotalEccErrors, (nvml_device, int kind, int counter, unsigned long long *)) \
	X(nvmlDeviceGetUtilizationRates, (nvml_device, nvml_utilization *)) \
	X(nvmlDeviceGetComputeRunningProcesses_v3, (nvml_device, unsigned *, nvml_process *)) \
	X(nvmlDeviceGetNvLinkState, (nvml_device, unsigned, unsigned *)) \
	X(nvmlDeviceGetP2PStatus, (nvml_device, nvml_device, int kind, int *))

typedef struct {
#define X(name, args) int (*name) args;
	NVML_FUNCTIONS(X)
#undef X
} nvml;

enum { NVML_FUNCTION_COUNT = sizeof(nvml) / sizeof(void *), NVML_NVLINKS = 18, NVML_PROCESSES = 256 };

// nvml_state is a GPU's state. The clocks are in MHz, the powers in milliwatts. A number that the GPU does not have is 0.
typedef struct {
	unsigned clock, max_clock, temperature, power, power_limit, nvlinks;
	unsigned long long slowdowns, ecc_errors;
} nvml_state;

const char *nvml_symbol(int i);
void nvml_set(nvml *n, int i, void *f);
int nvml_init(nvml *n);
void nvml_shutdown(nvml *n);
int nvml_driver(nvml *n, char *text, unsigned size);
int nvml_count(nvml *n, unsigned *count);
int nvml_find(nvml *n, unsigned index, nvml_device *d);
int nvml_find_bus_id(nvml *n, const char *id, nvml_device *d);
int nvml_read_name(nvml *n, nvml_device d, char *name, unsigned size, nvml_pci *pci);
int nvml_read_state(nvml *n, nvml_device d, nvml_state *s);
unsigned nvml_read_utilization(nvml *n, nvml_device d);
unsigned nvml_count_processes(nvml *n, nvml_device d);

// nvml_blocked says whether one GPU cannot read the memory of another: 1 or 0; 0 if NVML does not know.
int nvml_blocked(nvml *n, nvml_device from, nvml_device to);

#endif
