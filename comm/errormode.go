package comm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/flight"
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
const DefaultHeartbeat = 600 * time.Second

// readEnv sets the options that come from environment variables. It does not change an
// ErrorMode that the caller has set.
func (o *Options) readEnv() error {
	var e env
	o.monitoring = e.flag(true, jobenv.MonitoringVars)
	o.heartbeat = DefaultHeartbeat
	if name, v, ok := setting(jobenv.HeartbeatVars); ok {
		n, err := strconv.Atoi(v)
		if err != nil || n <= 0 {
			e.addf("%s is %q, not a number of seconds", name, v)
		}
		o.heartbeat = time.Duration(n) * time.Second
	}
	info, detail := e.debugLevel()
	o.reportStragglers = info
	o.CheckCalls = detail || o.CheckCalls
	if mode := e.errorMode(); o.ErrorMode == DefaultErrorMode {
		o.ErrorMode = mode
	}
	var err error
	if o.flight, err = flight.ReadSettings(os.LookupEnv); err != nil {
		e.addf("%v", err)
	}
	o.dumps = o.flight.Dir
	if len(e) > 0 {
		return fmt.Errorf("comm: what the environment says of failures: %s", strings.Join(e, "; "))
	}
	return nil
}

// debugLevel reads GODDP_DEBUG or, if it is not set, TORCH_DISTRIBUTED_DEBUG. At INFO the group
// logs which ranks make the other ranks wait. At DETAIL the group also compares the ranks'
// calls.
func (e *env) debugLevel() (info, detail bool) {
	name, level, ok := setting(jobenv.DebugVars)
	switch strings.ToUpper(level) {
	case "DETAIL":
		return true, true
	case "INFO":
		return true, false
	case "OFF", "":
		return false, false
	}
	if ok {
		e.addf("%s is %q, not OFF, INFO or DETAIL", name, level)
	}
	return false, false
}

// errorMode returns the error mode that the environment asks for.
func (e *env) errorMode() ErrorMode {
	blocking := e.flag(false, jobenv.BlockingWaitVars)
	name, v, ok := setting(jobenv.AsyncErrorHandlingVars)
	mode := AsyncErrorHandling
	switch v {
	case "0":
		mode = NoErrorHandling
	case "2":
		mode = CleanUpOnly
	case "", "1", "3":
	default:
		e.addf("%s is %q, not 0, 1, 2 or 3", name, v)
	}
	switch {
	case blocking && ok && mode != NoErrorHandling:
		e.addf("blocking wait and asynchronous error handling are both on: set %s=0, or leave blocking wait off", name)
	case blocking:
		return BlockingWait
	}
	return mode
}

// setting returns the first of the named variables that is set.
func setting(names []string) (name, value string, ok bool) {
	for _, name := range names {
		if value, ok = os.LookupEnv(name); ok {
			return name, value, true
		}
	}
	return "", "", false
}

// flag reads an environment variable that means on or off. It returns fallback if none of the
// names is set.
func (e *env) flag(fallback bool, names []string) bool {
	value, err := jobenv.Bool(os.Getenv, fallback, names...)
	if err != nil {
		e.addf("%v", err)
	}
	return value
}
