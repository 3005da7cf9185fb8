// Package jobenv defines how a launcher and its workers communicate, and how the user configures both:
// by the environment, the file of a worker's [StopState], and the worker's [ErrorFile].
//
// golaunch writes a [Job] into the environment of each worker, and ranks read it, from golaunch or torchrun. The
// user sets [Settings]. No other package spells a variable of goddp. A value that cannot be read is an error
// NAME="value": want ..., and one error names all of them.
//
// # Settings
//
// "On" is 1, true, t, yes or y; "off" is 0, false, f, no or n. An empty variable counts as not set. Where the last
// column has PyTorch's names, they count if goddp's is not set; * is the name without GODDP_.
//
//	variable                        type, default                     also
//	GODDP_ASYNC_ERROR_HANDLING      0 to 3, 1                         TORCH_NCCL_*, NCCL_*
//	GODDP_BLOCKING_WAIT             on or off, off                    TORCH_NCCL_*, NCCL_*
//	GODDP_HEARTBEAT_TIMEOUT_SEC     seconds, 600                      TORCH_NCCL_*, NCCL_*
//	GODDP_ENABLE_MONITORING         on or off, on                     TORCH_NCCL_*, NCCL_*
//	GODDP_DEBUG                     OFF, INFO or DETAIL, OFF          TORCH_DISTRIBUTED_DEBUG
//	GODDP_NAN_CHECK                 on or off, off                    TORCH_NCCL_NAN_CHECK
//	GODDP_FLIGHT_ENTRIES            number, 2000                      TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE
//	GODDP_FLIGHT_DIR                folder, beside golaunch's logs    TORCH_FR_DUMP_TEMP_FILE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE
//	GODDP_DUMP_ON_FAILURE           on or off, on                     TORCH_NCCL_DUMP_ON_TIMEOUT
//	GODDP_TOKEN_FILE, GODDP_TOKEN   file, or the secret itself
//	GODDP_INSECURE                  on or off, off
//	GODDP_UNPROTECTED_DATA          on or off, off
//	GODDP_DEVICE                    cpu, cuda or cuda:N; a GPU if there is one
//	GODDP_ALLOW_TF32                on or off, off
//	GODDP_TUNE_CONVOLUTIONS         on or off, off
//	GODDP_NONDETERMINISTIC          on or off, off
//	GODDP_NO_SMALL_ALLREDUCE        on or off, off
//	GODDP_HOST_ID                   text, the host's own id
//	GODDP_LIBCUDA and other LIB*,   file, on the loader's path or where NVIDIA's packages have it
//	GODDP_OPENBLAS, GODDP_ONEDNN    GODDP_ONEDNN and GODDP_LIBCUDNN may be none
//	OMP_NUM_THREADS                 number, the rank's share of the cores
//	OPENBLAS_CORETYPE               OpenBLAS's name of a processor, the best one that this processor can be
//
// # A job
//
//	RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, ROLE_*, GROUP_*, TORCHELASTIC_*
//	                                torchrun's
//	TORCH_ELASTIC_SHUTDOWN_TIMEOUT  seconds, 30
//	GODDP_JOB_ID                    the job's id, a random one
//	GODDP_MASTER                    MASTER_ADDR:MASTER_PORT of the job that the next three variables belong to
//	GODDP_STORE, GODDP_COORDINATOR  host:port of the agent's
//	GODDP_NODE_ADDR                 the address at which other nodes reach this one
//	GODDP_WORKER                    the worker's number, in a job that goes on when it loses workers (golaunch --on-failure)
//	GODDP_JOINS                     on if the worker was started in place of a lost one
//	GODDP_STOP_FILE                 the file of the StopState
//	GODDP_FLIGHT_FD                 the descriptor of the flight recorder's memory
//	GODDP_REPORT_FD                 the descriptor of the socket for the worker's numbers, if somebody looks at the job
//	GODDP_COLUMNS                   COLUMNS:INODE, the width of the terminal on which golaunch shows the worker's stderr, without
//	                                the prefix, and the inode of that pipe; else 0
//	GODDP_LAUNCHER_*                marks a value of GODDP_FLIGHT_DIR, GODDP_TOKEN_FILE or OMP_NUM_THREADS as chosen by
//	                                golaunch, so that a golaunch within the job knows that the user did not choose it
//	GODDP_REAPER                    on in the reaper, the workers' parent
package jobenv
