package stopfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLauncherReadsTheStateThatTheWorkerWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop")
	if got := Read(path); got != Unheeded {
		t.Errorf("without a file: %q", got)
	}
	for _, s := range []State{Heeded, Done} {
		if err := s.Write(path); err != nil {
			t.Fatal(err)
		}
		if got := Read(path); got != s {
			t.Errorf("%q is read as %q", s, got)
		}
	}
	if err := os.WriteFile(path, []byte("heeded and more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Read(path); got != Unheeded {
		t.Errorf("of something else: %q", got)
	}
	if err := Heeded.Write(""); err != nil {
		t.Errorf("without a launcher: %v", err)
	}
}

// A file that is missing, perhaps with its folder, refuses nothing, and is made again.
func TestStopRequestsAreRefusedByOrderAlone(t *testing.T) {
	for _, written := range []State{Unheeded, Heeded, Done} {
		dir := filepath.Join(t.TempDir(), "attempt_0", "0")
		path := filepath.Join(dir, "stop")
		if IsRefused(path) || Read(path) != Unheeded {
			t.Error("without a folder: the launcher refuses requests, or the worker heeds them")
		}
		if written != Unheeded {
			if err := written.Write(path); err != nil || Read(path) != written || IsRefused(path) {
				t.Errorf("%q, written without a folder: %v, read as %q", written, err, Read(path))
			}
		}
		if state, err := Refuse(path); err != nil || state != written || !IsRefused(path) {
			t.Errorf("Refuse after %q: %q, %v", written, state, err)
		}
		if err := Heeded.Write(path); err != nil || !IsRefused(path) {
			t.Errorf("%v: a worker that heeds requests from now on does not see that they are refused", err)
		}
	}
}

func TestTimeout(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0.5": time.Second / 2, "0": 0,
		"": DefaultTimeout, "soon": DefaultTimeout, "-1": DefaultTimeout, "NaN": DefaultTimeout, "1e300": DefaultTimeout,
	} {
		t.Setenv(TimeoutVar, value)
		if got := Timeout(); got != want {
			t.Errorf("%q is %v, want %v", value, got, want)
		}
	}
	if got, want := TimeoutEnv(1500*time.Millisecond), TimeoutVar+"=1.5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
