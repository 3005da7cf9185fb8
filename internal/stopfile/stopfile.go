// Package stopfile tells a launcher how its workers take stop requests: signals that ask a
// program to stop after its current step. A worker writes its state into a file, and the
// launcher reads it.
package stopfile

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/atomicfile"
	"github.com/goddp/goddp/internal/regular"
)

// Var is the variable that names the file to a worker. Before a launcher stops a worker
// because of another's failure, it removes the file. The worker then takes the signal as an
// order to end at once.
const Var = "GODDP_STOP_FILE"

// State is the state of a worker with regard to stop requests.
type State string

// The states.
const (
	Unheeded State = ""         // a signal ends the program at once
	Heeded   State = "heeded\n" // the program takes the first signal as a stop request
	Done     State = "done\n"   // the process exits because the ranks agreed to stop
)

// Write writes s to the file path. It does nothing if path is "".
func (s State) Write(path string) error {
	if path == "" {
		return nil
	}
	return atomicfile.WriteBytes(path, 0o644, []byte(s))
}

// Read returns the state in the file path. It returns Unheeded if there is no file, or if the
// file holds no known state.
func Read(path string) State {
	content, err := regular.Read(path, 64)
	if s := State(content); err == nil && (s == Heeded || s == Done) {
		return s
	}
	return Unheeded
}

// TimeoutVar is the variable that holds the launcher's shutdown timeout in seconds. torchrun
// reads it too.
const TimeoutVar = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

// DefaultTimeout is the default shutdown timeout of golaunch, torchrun and Kubernetes.
const DefaultTimeout = 30 * time.Second

// TimeoutEnv returns the environment entry that sets TimeoutVar to d.
func TimeoutEnv(d time.Duration) string {
	return fmt.Sprintf("%s=%s", TimeoutVar, strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
}

// Timeout returns the shutdown timeout in the environment, or DefaultTimeout.
func Timeout() time.Duration {
	seconds, err := strconv.ParseFloat(os.Getenv(TimeoutVar), 64)
	if err != nil || !(seconds >= 0) || seconds > math.MaxInt64/1e9 {
		return DefaultTimeout
	}
	return time.Duration(seconds * float64(time.Second))
}
