//go:build cgo && unix

package dl

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// build compiles a library that exports answer, and returns its path.
func build(t *testing.T) string {
	testkit.Need(t, testkit.Command("cc"))
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "answer.c"), filepath.Join(dir, "libanswer.so.1")
	if err := os.WriteFile(source, []byte("int answer(void) { return 42; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return lib
}

func TestOpen(t *testing.T) {
	path := build(t)
	dir, file := filepath.Split(path)
	none := "libgoddp-none.so"
	for name, s := range map[string]Search{
		"by the variable":       {Name: "answer", Env: "DL_TEST_ANSWER", Files: []string{none}},
		"by a folder":           {Name: "answer", Files: []string{none, file}, Dirs: []string{"/nonexistent", dir}},
		"by a folder's pattern": {Name: "answer", Files: []string{file}, Dirs: []string{filepath.Dir(filepath.Clean(dir)) + "/*"}},
	} {
		t.Run(name, func(t *testing.T) {
			if s.Env != "" {
				t.Setenv(s.Env, path)
			}
			lib, err := Open(s)
			if err != nil {
				t.Fatal(err)
			}
			if lib.String() != path {
				t.Errorf("opened %s, want %s", lib, path)
			}
			if _, err := lib.Lookup("answer"); err != nil {
				t.Error(err)
			}
			_, err = lib.Lookup("question")
			if err == nil || !strings.Contains(err.Error(), "question") || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want one naming question and %s", err, path)
			}
		})
	}
}

// Open finds the C library on the loader's path.
func TestOpenLoaderPath(t *testing.T) {
	if _, err := Open(Search{Name: "libc", Files: []string{"libc.so.6", "libSystem.dylib"}}); err != nil {
		t.Error(err)
	}
}

// The error lists every place. The loader gets no pattern as a name. If the variable is set, its value is the only place.
func TestNotFound(t *testing.T) {
	s := Search{Name: "Answer", Env: "DL_TEST_ANSWER", Files: []string{"libanswer-a.so", "libanswer-b.so.*"}, Dirs: []string{"/nonexistent"}}
	_, err := Open(s)
	var missing *NotFoundError
	if !errors.As(err, &missing) {
		t.Fatalf("error %v, want a NotFoundError", err)
	}
	var places []string
	for _, tried := range missing.Tried {
		places = append(places, tried.Place)
		if tried.Why == "" {
			t.Errorf("%s: no reason", tried.Place)
		}
	}
	want := "libanswer-a.so /nonexistent/libanswer-a.so /nonexistent/libanswer-b.so.*"
	if got := strings.Join(places, " "); got != want {
		t.Errorf("tried %s, want %s", got, want)
	}
	if want := "Answer was not found (DL_TEST_ANSWER can name it): no libanswer-a.so or libanswer-b.so.* on the loader's path, /nonexistent"; err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}

	t.Setenv(s.Env, "/nonexistent/mine.so")
	if _, err = Open(s); !errors.As(err, &missing) || len(missing.Tried) != 1 || missing.Tried[0].Place != "/nonexistent/mine.so" {
		t.Errorf("error %v, want only /nonexistent/mine.so tried", err)
	}
	if !strings.Contains(err.Error(), "/nonexistent/mine.so (") {
		t.Errorf("%q does not say why /nonexistent/mine.so was not opened", err)
	}
}
