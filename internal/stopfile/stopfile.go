// Package stopfile tells a launcher how its workers take stop requests: signals that ask a
// program to stop after its current step. A worker writes its state into a file, and the
// launcher reads it. The launcher may refuse stop requests by another file. Either file may be
// missing because something that removes old files has removed their folder: then the worker
// is not known to heed stop requests, and the launcher has refused none.
package stopfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/files"
)

// Var is the variable that names the worker's file to the worker.
const Var = "GODDP_STOP_FILE"

// State is the state of a worker with regard to stop requests.
type State string

// The states.
const (
	Unheeded State = ""         // a signal ends the program at once
	Heeded   State = "heeded\n" // the program takes the first signal as a stop request
	Done     State = "done\n"   // the process exits because the ranks agreed to stop
)

// Write writes s to the file path, and makes the file's folder if it is gone. It does nothing
// if path is "".
func (s State) Write(path string) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return files.WriteBytes(path, 0o644, []byte(s))
}

// Read returns the state in the file path. It returns Unheeded if there is no file, or if the
// file holds no known state.
func Read(path string) State {
	content, err := files.Read(path, 64)
	if s := State(content); err == nil && (s == Heeded || s == Done) {
		return s
	}
	return Unheeded
}

// Refuse makes a worker take later signals as an order to end at once. A launcher calls it
// before it stops a worker because of another's failure. Refuse returns the worker's state. It
// moves the worker's file, because that needs no space on the disk.
func Refuse(path string) (State, error) {
	refused := refusedPath(path)
	err := os.Rename(path, refused)
	if errors.Is(err, fs.ErrNotExist) { // the worker does not heed stop requests yet, or the file is gone
		return Unheeded, Unheeded.Write(refused)
	}
	return Read(refused), err
}

// IsRefused reports whether Refuse was called for the file path.
func IsRefused(path string) bool {
	_, err := files.Read(refusedPath(path), 64)
	return err == nil
}

func refusedPath(path string) string { return path + ".refused" }

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
