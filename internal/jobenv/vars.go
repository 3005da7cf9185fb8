package jobenv

import "strings"

// Prefix begins the name of each of goddp's own variables. LibraryPrefix begins the name of most variables that name
// a library.
const (
	Prefix        = "GODDP_"
	LibraryPrefix = Prefix + "LIB"
)

// What a launcher tells a worker of its job, under torchrun's names.
const (
	RankVar           = "RANK"
	WorldSizeVar      = "WORLD_SIZE"
	LocalRankVar      = "LOCAL_RANK"
	LocalWorldSizeVar = "LOCAL_WORLD_SIZE"
	MasterAddrVar     = "MASTER_ADDR"
	MasterPortVar     = "MASTER_PORT"
	RunIDVar          = "TORCHELASTIC_RUN_ID"
	ErrorFileVar      = "TORCHELASTIC_ERROR_FILE"
	AgentStoreVar     = "TORCHELASTIC_USE_AGENT_STORE"
	RestartsVar       = "TORCHELASTIC_RESTART_COUNT"
	// ShutdownTimeoutVar is how long the launcher waits for a worker that it stops, in seconds.
	ShutdownTimeoutVar = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
	// ThreadsVar is the number of threads by which users, launchers and libraries let a process compute.
	ThreadsVar = "OMP_NUM_THREADS"
	// CoreVar is OpenBLAS's name of a kind of processor. OpenBLAS computes with the kernels for it.
	CoreVar = "OPENBLAS_CORETYPE"
	// GPUsVar lists the GPUs that CUDA lets a process see.
	GPUsVar = "CUDA_VISIBLE_DEVICES"
)

// What golaunch alone tells a worker.
const (
	// JobIDVar is the job's id, a random one unless the user sets it.
	JobIDVar = "GODDP_JOB_ID"
	// StoreVar and CoordinatorVar are the addresses, host:port, at which a worker of golaunch
	// finds the job's store and coordinator. A worker does not accept another program's store
	// there. NodeAddrVar is the address at which other nodes reach the worker's node.
	//
	// These three variables hold only in the job whose MASTER_ADDR and MASTER_PORT equal the
	// value of MasterVar. A worker may start a launcher other than golaunch, which passes the
	// three variables on to another job.
	StoreVar       = "GODDP_STORE"
	CoordinatorVar = "GODDP_COORDINATOR"
	NodeAddrVar    = "GODDP_NODE_ADDR"
	MasterVar      = "GODDP_MASTER"
	// WorkerVar is set in a job that survives the loss of workers. JoinsVar is true if the worker replaces a lost one.
	WorkerVar = "GODDP_WORKER"
	JoinsVar  = "GODDP_JOINS"
	// StopFileVar names the file of the worker's [StopState].
	StopFileVar = "GODDP_STOP_FILE"
	// FlightFDVar is the file descriptor of the memory for the worker's flight recorder.
	FlightFDVar = "GODDP_FLIGHT_FD"
	// ReportFDVar is the file descriptor of the socket to which the worker reports its numbers: see package telemetry.
	ReportFDVar = "GODDP_REPORT_FD"
	// ColumnsVar is the number of columns for a line that the worker redraws on its stderr, by lines that end in "\r", and the
	// inode of that pipe: see [Columns]. 0: it must not.
	ColumnsVar = "GODDP_COLUMNS"
)

// What golaunch tells a golaunch that its worker starts. If one of these variables equals the user's variable for the
// same setting, then golaunch chose this value for its own job, and the user did not.
const (
	LauncherFlightDirVar = "GODDP_LAUNCHER_FLIGHT_DIR" // golaunch's value of FlightDirVar
	LauncherSecretVar    = "GODDP_LAUNCHER_SECRET"     // golaunch's value of TokenFileVar
	LauncherThreadsVar   = "GODDP_LAUNCHER_THREADS"    // golaunch's value of OMP_NUM_THREADS
)

// ReaperVar is set in the environment of the reaper, which is the workers' parent.
const ReaperVar = "GODDP_REAPER"

// How a job authenticates its processes.
const (
	// TokenFileVar names the file that holds the job's secret. TokenVar is the secret itself, for
	// jobs whose nodes have no file in common. TokenFileVar takes precedence.
	TokenFileVar = "GODDP_TOKEN_FILE"
	TokenVar     = "GODDP_TOKEN"
	// InsecureVar, if it is on, makes a store serve every client.
	InsecureVar = "GODDP_INSECURE"
	// UnprotectedVar, if it is on, leaves the data between ranks on different hosts neither
	// encrypted nor authenticated.
	UnprotectedVar = "GODDP_UNPROTECTED_DATA"
)

// What happens when a call fails, and the flight recorder. The first name that is set counts; the others are PyTorch's.
var (
	AsyncErrorHandlingVars = ncclNames("ASYNC_ERROR_HANDLING")
	BlockingWaitVars       = ncclNames("BLOCKING_WAIT")
	HeartbeatVars          = ncclNames("HEARTBEAT_TIMEOUT_SEC")
	MonitoringVars         = ncclNames("ENABLE_MONITORING")
	DebugVars              = []string{DebugVar, "TORCH_DISTRIBUTED_DEBUG"}
	NaNCheckVars           = []string{"GODDP_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"}
	FlightEntriesVars      = []string{FlightEntriesVar, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}
	DumpOnFailureVars      = []string{DumpOnFailureVar, "TORCH_NCCL_DUMP_ON_TIMEOUT"}
	FlightPrefixVars       = []string{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
)

func ncclNames(suffix string) []string {
	return []string{Prefix + suffix, "TORCH_NCCL_" + suffix, "NCCL_" + suffix}
}

// goddp's own names of them.
const (
	DebugVar         = "GODDP_DEBUG"
	FlightEntriesVar = "GODDP_FLIGHT_ENTRIES"
	FlightDirVar     = "GODDP_FLIGHT_DIR"
	DumpOnFailureVar = "GODDP_DUMP_ON_FAILURE"
)

// The device and the backend.
const (
	DeviceVar           = "GODDP_DEVICE"
	AllowTF32Var        = "GODDP_ALLOW_TF32"
	TuneConvolutionsVar = "GODDP_TUNE_CONVOLUTIONS"
	NondeterministicVar = "GODDP_NONDETERMINISTIC"
	NoSmallAllReduceVar = "GODDP_NO_SMALL_ALLREDUCE"
	HostIDVar           = "GODDP_HOST_ID"
)

// The libraries that are opened at run time. Each variable names a file to open instead of the file that would be found.
const (
	LibCUDAVar     = "GODDP_LIBCUDA"
	LibCUBLASLtVar = "GODDP_LIBCUBLASLT"
	LibNVRTCVar    = "GODDP_LIBNVRTC"
	LibCUDNNVar    = "GODDP_LIBCUDNN"
	LibCUPTIVar    = "GODDP_LIBCUPTI"
	LibNCCLVar     = "GODDP_LIBNCCL"
	LibNVMLVar     = "GODDP_LIBNVML"
	OpenBLASVar    = "GODDP_OPENBLAS"
	OneDNNVar      = "GODDP_ONEDNN"
)

// IsLibrary reports whether a variable names a library.
func IsLibrary(name string) bool {
	return name == OpenBLASVar || name == OneDNNVar || strings.HasPrefix(name, LibraryPrefix)
}
