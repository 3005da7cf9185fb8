package comm

import (
	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/jobenv"
)

// ErrorMode says what happens when a call fails: when its deadline passes, a peer dies, or
// another rank reports a failure.
type ErrorMode uint8

// The error modes. In all modes but NoErrorHandling, a failed call breaks the group on all
// ranks: pending and later calls return the cause, and each rank writes its flight record.
const (
	// DefaultErrorMode takes the mode from GODDP_BLOCKING_WAIT and
	// GODDP_ASYNC_ERROR_HANDLING, or from PyTorch's variables, which begin with TORCH_NCCL_.
	// If none is set, the mode is AsyncErrorHandling.
	DefaultErrorMode = ErrorMode(watchdog.Default)
	// AsyncErrorHandling (1 or 3 in the environment) ends the process, unless the program
	// closes the group within half a second. Before the process ends, the functions given to
	// OnShutdown run.
	AsyncErrorHandling = ErrorMode(watchdog.Async)
	// CleanUpOnly (2 in the environment) does not end the process.
	CleanUpOnly = ErrorMode(watchdog.CleanUp)
	// NoErrorHandling (0 in the environment) does not fail a call whose deadline has passed. It
	// only logs that the deadline has passed.
	NoErrorHandling = ErrorMode(watchdog.None)
	// BlockingWait makes Wait block until the call is done or has failed, also on a GPU.
	// BlockingWait does not end the process, so the program can close the group and call Init
	// again.
	BlockingWait = ErrorMode(watchdog.Blocking)
)

// DefaultHeartbeat is how long the watchdog may make no progress, unless an environment
// variable sets another time.
const DefaultHeartbeat = jobenv.DefaultHeartbeat
