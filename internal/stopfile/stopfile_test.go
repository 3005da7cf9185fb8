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
