package comm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/flight"
)

// ErrorMode is what a failed call leads to: one whose deadline passed, whose
// peer died, or that another rank failed.
type ErrorMode = watchdog.Mode

// The error modes. In each but NoErrorHandling the rank's flight record is
// written, the other ranks are told, and the group breaks: its pending and
// later calls return the cause.
const (
	// DefaultErrorMode is what GODDP_BLOCKING_WAIT and
	// GODDP_ASYNC_ERROR_HANDLING say, or PyTorch's names for them with
	// TORCH_NCCL_ in front; else AsyncErrorHandling.
	DefaultErrorMode = watchdog.Default
	// AsyncErrorHandling (1 or 3 in the environment) ends the process if it
	// does not close the group by itself in a moment. Functions given to
	// OnShutdown run before.
	AsyncErrorHandling = watchdog.Async
	// CleanUpOnly (2) lets the process live.
	CleanUpOnly = watchdog.CleanUp
	// NoErrorHandling (0) only logs a deadline that passes: the call goes on.
	NoErrorHandling = watchdog.None
	// BlockingWait makes Wait block, on a GPU too, until the call is done or
	// has failed, and lets the process live: it can close the group, and Init
	// another.
	BlockingWait = watchdog.Blocking
)

// DefaultHeartbeat bounds how long the watchdog may be stuck.
const DefaultHeartbeat = 600 * time.Second

// readEnv sets the options that the caller left to the environment.
func (o *Options) readEnv() error {
	var e env
	o.monitoring = e.flag("ENABLE_MONITORING", true)
	o.heartbeat = DefaultHeartbeat
	if name, v, ok := setting("HEARTBEAT_TIMEOUT_SEC", ncclNames...); ok {
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

// debugLevel tells what the environment wants to know: INFO, which ranks hold
// the others up; DETAIL, calls compared as well.
func (e *env) debugLevel() (info, detail bool) {
	name, level, ok := setting("DEBUG", "GODDP_", "TORCH_DISTRIBUTED_")
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

// errorMode is the environment's.
func (e *env) errorMode() ErrorMode {
	blocking := e.flag("BLOCKING_WAIT", false)
	name, v, ok := setting("ASYNC_ERROR_HANDLING", ncclNames...)
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

// ncclNames are the prefixes of the variables of PyTorch's NCCL backend, ours
// first.
var ncclNames = []string{"GODDP_", "TORCH_NCCL_", "NCCL_"}

// setting looks a variable up that has several prefixes; the first counts.
func setting(suffix string, prefixes ...string) (name, value string, ok bool) {
	for _, prefix := range prefixes {
		if value, ok = os.LookupEnv(prefix + suffix); ok {
			return prefix + suffix, value, true
		}
	}
	return "", "", false
}

// flag reads a setting that is on or off.
func (e *env) flag(suffix string, fallback bool) bool {
	name, v, ok := setting(suffix, ncclNames...)
	if !ok {
		return fallback
	}
	switch strings.ToLower(v) {
	case "1", "y", "yes", "t", "true":
		return true
	case "0", "n", "no", "f", "false":
		return false
	}
	e.addf("%s is %q, neither 0 nor 1", name, v)
	return fallback
}
