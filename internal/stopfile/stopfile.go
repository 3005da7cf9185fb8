// Package stopfile is how a worker and its launcher tell each other of stop requests:
// signals that ask a program to stop behind its step.
package stopfile

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/atomicfile"
)

// Var is the variable that names the file in which a worker tells its launcher about stop
// requests. A launcher that ends a worker because another failed removes the file first:
// the signal is no request then.
const Var = "GODDP_STOP_FILE"

// State is what a worker tells.
type State string

// The states.
const (
	Unheeded State = ""         // a signal ends the program at once
	Heeded   State = "heeded\n" // the program asks for requests
	Done     State = "done\n"   // the process exits because its ranks agreed to stop
)

// Write tells the launcher, if path names a file.
func (s State) Write(path string) error {
	if path == "" {
		return nil
	}
	return atomicfile.WriteBytes(path, 0o644, []byte(s))
}

// Read returns what the worker told. A worker that told nothing, or nothing that is
// known, heeds no requests.
func Read(path string) State {
	content, err := atomicfile.Read(path, 64)
	if s := State(content); err == nil && (s == Heeded || s == Done) {
		return s
	}
	return Unheeded
}

// TimeoutVar is the launcher's shutdown timeout in seconds. torchrun reads this variable
// too.
const TimeoutVar = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

// DefaultTimeout is that of golaunch, torchrun and Kubernetes.
const DefaultTimeout = 30 * time.Second

// TimeoutEnv is the variable's entry in an environment.
func TimeoutEnv(d time.Duration) string {
	return fmt.Sprintf("%s=%s", TimeoutVar, strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
}

// Timeout is the shutdown timeout that the environment says, or DefaultTimeout.
func Timeout() time.Duration {
	seconds, err := strconv.ParseFloat(os.Getenv(TimeoutVar), 64)
	if err != nil || !(seconds >= 0) || seconds > math.MaxInt64/1e9 {
		return DefaultTimeout
	}
	return time.Duration(seconds * float64(time.Second))
}
