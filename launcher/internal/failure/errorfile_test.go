package failure

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
)

// FuzzErrorFile reads arbitrary error files, and copies them to the parent's error file.
// The copy must have the same content.
func FuzzErrorFile(f *testing.F) {
	for _, text := range []string{
		`{"message": {"message": "boom", "extraInfo": {"py_callstack": "at f", "timestamp": "1700000000.25", "caused_by": "2000000000"}}}`,
		`{"message": "plain"}`, `{"message": null}`, `{"message": {"message": "boom", "errorCode": {}}, "more": [1, 2]}`, "null", "[]", `{"message": {}}`,
		`{"message": {"message": "boom", "extraInfo": {"timestamp": 1e300}}}`,
		`{"a": [` + strings.Repeat("{},", 1000) + `{}], "message": "plain"}`,
		strings.Repeat("[", 20000), strings.Repeat(`{"message":`, 5000),
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path, outer := filepath.Join(dir, "inner.json"), filepath.Join(dir, "outer.json")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		root := &Failure{Rank: 3, PID: 77, Status: Status{Code: 6}, Exited: time.Unix(1_700_000_000, 0), ErrorPath: path}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := jobenv.ReadErrorFile(path)
		copied := CopyErrorFile(root, outer)
		runtime.ReadMemStats(&after)
		if taken, most := after.TotalAlloc-before.TotalAlloc, uint64(128<<10+64*len(data)); taken > most {
			t.Errorf("%d bytes taken for a file of %d, at most %d", taken, len(data), most)
		}
		if copied != nil {
			t.Fatal(copied)
		}
		if got != nil && !got.Time.IsZero() && got.Time.Unix() < 0 {
			t.Errorf("time %v", got.Time)
		}
		theirs, unread := jobenv.ReadErrorFile(outer)
		if err != nil || got == nil {
			return // the copy is what this agent says, or as wrong as the file
		}
		if unread != nil || theirs.Message != got.Message || theirs.Callstack != got.Callstack || !reflect.DeepEqual(theirs.CausedBy, got.CausedBy) {
			t.Errorf("passed on as %+v, %v; came as %+v", theirs, unread, got)
		}
	})
}

// The agent writes an error file for a worker that wrote none.
func TestCopyErrorFileWithoutOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	root := &Failure{Rank: 3, PID: 77, Status: Status{Signal: syscall.SIGKILL}, Exited: time.Unix(1_700_000_000, 0)}
	if err := CopyErrorFile(root, path); err != nil {
		t.Fatal(err)
	}
	if got, err := jobenv.ReadErrorFile(path); err != nil || got.Message != "rank 3 (pid 77) was killed by SIGKILL" || !got.Time.Equal(root.Exited) {
		t.Errorf("got %+v, %v", got, err)
	}
}
