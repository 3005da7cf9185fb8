package jobenv

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLauncherReadsTheStateThatTheWorkerWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop")
	if got := ReadStopState(path); got != StopUnheeded {
		t.Errorf("without a file: %q", got)
	}
	for _, s := range []StopState{StopHeeded, StopDone} {
		if err := s.Write(path); err != nil {
			t.Fatal(err)
		}
		if got := ReadStopState(path); got != s {
			t.Errorf("%q is read as %q", s, got)
		}
	}
	if err := os.WriteFile(path, []byte("heeded and more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ReadStopState(path); got != StopUnheeded {
		t.Errorf("of something else: %q", got)
	}
	if err := StopHeeded.Write(""); err != nil {
		t.Errorf("without a launcher: %v", err)
	}
}

// A file that is missing, perhaps with its folder, refuses nothing, and is made again.
func TestStopRequestsAreRefusedByOrderAlone(t *testing.T) {
	for _, written := range []StopState{StopUnheeded, StopHeeded, StopDone} {
		dir := filepath.Join(t.TempDir(), "attempt_0", "0")
		path := filepath.Join(dir, "stop")
		if RefusesStops(path) || ReadStopState(path) != StopUnheeded {
			t.Error("without a folder: the launcher refuses requests, or the worker heeds them")
		}
		if written != StopUnheeded {
			if err := written.Write(path); err != nil || ReadStopState(path) != written || RefusesStops(path) {
				t.Errorf("%q, written without a folder: %v, read as %q", written, err, ReadStopState(path))
			}
		}
		if state, err := RefuseStops(path); err != nil || state != written || !RefusesStops(path) {
			t.Errorf("Refuse after %q: %q, %v", written, state, err)
		}
		if err := StopHeeded.Write(path); err != nil || !RefusesStops(path) {
			t.Errorf("%v: a worker that heeds requests from now on does not see that they are refused", err)
		}
	}
}

func TestTimeout(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0.5": time.Second / 2, "0": 0,
		"": DefaultShutdownTimeout, "soon": DefaultShutdownTimeout, "-1": DefaultShutdownTimeout, "NaN": DefaultShutdownTimeout, "1e300": DefaultShutdownTimeout,
	} {
		t.Setenv(ShutdownTimeoutVar, value)
		if got := ShutdownTimeout(); got != want {
			t.Errorf("%q is %v, want %v", value, got, want)
		}
	}
}
