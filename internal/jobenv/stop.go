package jobenv

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/files"
)

// StopState is the state of a worker with regard to stop requests: signals that ask a program to stop
// after its current step. The worker writes its state into a file, and the launcher reads the file. The
// launcher may refuse stop requests by another file. Either file may be missing, because systemd-tmpfiles or
// the like removed the folder. Without its file, the worker counts as not heeding stop requests. Without the
// other file, the launcher counts as not having refused any.
type StopState string

// The states.
const (
	StopUnheeded StopState = ""         // a signal ends the program at once
	StopHeeded   StopState = "heeded\n" // the program takes the first signal as a stop request
	StopDone     StopState = "done\n"   // the process exits because the ranks agreed to stop
)

// Write writes s to the file path, and makes the file's folder if it is gone. It does nothing
// if path is "".
func (s StopState) Write(path string) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return files.WriteBytes(path, 0o644, []byte(s))
}

// ReadStopState returns the state in the file path. It returns StopUnheeded if there is no file, or if the
// file holds no known state.
func ReadStopState(path string) StopState {
	content, err := files.Read(path, 64)
	if s := StopState(content); err == nil && (s == StopHeeded || s == StopDone) {
		return s
	}
	return StopUnheeded
}

// RefuseStops makes a worker end at once when a later signal arrives. A launcher calls it before it stops
// a worker because another worker failed. RefuseStops returns the worker's state. It refuses by moving the
// worker's file, because a move needs no space on the disk.
func RefuseStops(path string) (StopState, error) {
	refused := refusedPath(path)
	err := os.Rename(path, refused)
	if errors.Is(err, fs.ErrNotExist) { // the worker does not heed stop requests yet, or the file is gone
		return StopUnheeded, StopUnheeded.Write(refused)
	}
	return ReadStopState(refused), err
}

// RefusesStops reports whether RefuseStops was called for the file path.
func RefusesStops(path string) bool {
	_, err := files.Read(refusedPath(path), 64)
	return err == nil
}

func refusedPath(path string) string { return path + ".refused" }

// DefaultShutdownTimeout is the default shutdown timeout of golaunch, torchrun and Kubernetes.
const DefaultShutdownTimeout = 30 * time.Second

// ShutdownTimeout returns the shutdown timeout in the environment, or DefaultShutdownTimeout.
func ShutdownTimeout() time.Duration {
	seconds, err := strconv.ParseFloat(os.Getenv(ShutdownTimeoutVar), 64)
	if err != nil || !(seconds >= 0) || seconds > math.MaxInt64/1e9 {
		return DefaultShutdownTimeout
	}
	return time.Duration(seconds * float64(time.Second))
}
