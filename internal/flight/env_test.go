package flight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func TestSettings(t *testing.T) {
	for _, test := range []struct {
		env    map[string]string
		n      int
		dump   bool
		chosen string
	}{
		{nil, 2000, true, ""},
		{map[string]string{"GODDP_FLIGHT_ENTRIES": "10", "TORCH_FR_BUFFER_SIZE": "20"}, 10, true, ""},
		{map[string]string{"TORCH_FR_BUFFER_SIZE": "20", "TORCH_NCCL_TRACE_BUFFER_SIZE": "30"}, 20, true, ""},
		{map[string]string{"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, 0, false, ""},
		{map[string]string{"GODDP_DUMP_ON_FAILURE": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, 2000, true, ""},
		{map[string]string{"GODDP_FLIGHT_DIR": "/a", "TORCH_FR_DUMP_TEMP_FILE": "/b/rank_"}, 2000, true, "/a"},
		{map[string]string{"TORCH_FR_DUMP_TEMP_FILE": "/b/trace_rank_"}, 2000, true, "/b/trace_rank"},
		{map[string]string{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b/"}, 2000, true, "/b"},
	} {
		s, err := ReadSettings(lookup(test.env))
		if err != nil || s.Entries != test.n || s.DumpOnFailure != test.dump || s.Chosen() != test.chosen {
			t.Errorf("%v: %+v, %v", test.env, s, err)
		}
	}
	_, err := ReadSettings(lookup(map[string]string{"TORCH_FR_BUFFER_SIZE": "-1", "GODDP_DUMP_ON_FAILURE": "often"}))
	for _, want := range []string{`TORCH_FR_BUFFER_SIZE is "-1"`, `GODDP_DUMP_ON_FAILURE="often"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
}

func TestDir(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	s, err := ReadSettings(lookup(map[string]string{"GODDP_JOB_ID": "abc"}))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := s.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(dir) != tmp || !strings.HasSuffix(dir, "_abc") {
		t.Errorf("%s, mode %v, %v", dir, info.Mode(), err)
	}
	if again, err := s.Dir(); err != nil || again != dir {
		t.Errorf("the second time: %s, %v", again, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Dir(); err == nil {
		t.Error("a folder that others can write into was accepted")
	}
	// A chosen folder that all users can write to also gets a subfolder.
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if chosen, err := ReadSettings(lookup(map[string]string{"GODDP_JOB_ID": "abc", "GODDP_FLIGHT_DIR": tmp})); err != nil || chosen.Folder("abc") != dir {
		t.Errorf("%+v, %v", chosen, err)
	} else if _, err := chosen.Dir(); err == nil {
		t.Error("there, a folder that others can write into was accepted")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Dir(); err == nil {
		t.Error("a link was accepted")
	}
}
