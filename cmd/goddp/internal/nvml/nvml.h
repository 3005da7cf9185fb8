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
	X(nvmlDeviceGetName, (nvml_device, char *, unsigned)) \
	X(nvmlDeviceGetPciInfo_v3, (nvml_device, nvml_pci *)) \
	X(nvmlDeviceGetClockInfo, (nvml_device, int kind, unsigned *)) \
	X(nvmlDeviceGetMaxClockInfo, (nvml_device, int kind, unsigned *)) \
	X(nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device, unsigned long long *)) \
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

// nvml_gpu is a GPU's state. A number that the GPU does not have is 0.
typedef struct {
	char name[96];
	nvml_pci pci;
	unsigned clock, max_clock, processes, nvlinks;
	unsigned long long slowdowns, ecc_errors;
	nvml_utilization utilization;
} nvml_gpu;

const char *nvml_symbol(int i);
void nvml_set(nvml *n, int i, void *f);
int nvml_init(nvml *n);
void nvml_shutdown(nvml *n);
int nvml_driver(nvml *n, char *text, unsigned size);
int nvml_count(nvml *n, unsigned *count);

// nvml_read reads the state of a GPU.
int nvml_read(nvml *n, unsigned index, nvml_gpu *gpu);

// nvml_blocked says whether one GPU cannot read the memory of another: 1 or 0; 0 if NVML does not know.
int nvml_blocked(nvml *n, unsigned from, unsigned to);

#endif
