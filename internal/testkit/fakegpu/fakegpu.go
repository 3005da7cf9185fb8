//go:build cgo && linux

package fakegpu

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

//go:embed src
var sources embed.FS

// Variables are the environment variables that Libraries sets. A process without them opens the
// real libraries.
var Variables = []string{"GODDP_LIBCUDA", "GODDP_LIBNCCL", "GODDP_LIBCUBLASLT", "GODDP_LIBCUDNN", "GODDP_LIBNVRTC", "GODDP_LIBCUPTI", "GODDP_LIBNVML", "FAKEGPU_CONTROL"}

// Use makes a test, and the processes that it starts, open the fake libraries, with faults for [Control]. The end of the
// test removes the faults and makes calls that hang return; release does so earlier. Use skips the test where it cannot run.
func Use(t testing.TB, faults ...string) (release func()) {
	t.Helper()
	testkit.Emulated(t)
	testkit.Need(t, testkit.Command("gcc"), testkit.Command("g++"))
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range variables(dir, testkit.SharedDir(t)) {
		t.Setenv(name, value)
	}
	if release, err = Control(faults...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return release
}

// built returns a folder with the libraries, which it keeps in the user's cache.
var built = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "goddp", "fakegpu")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprint(sum, libraries)
	for _, file := range files {
		text, err := sources.ReadFile("src/" + file)
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	dir := filepath.Join(cache, fmt.Sprintf("%x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	fresh, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	if err := build(fresh, dir); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another process may have built them too
		return "", err
	}
	return dir, nil
})

// Libraries builds libcuda, libnccl, libcublasLt, libcudnn, libnvrtc, libcupti and libnvml in dir. It sets
// [Variables], such as GODDP_LIBCUDA, so that this process and its children open them. Control writes to a file in dir. It
// needs gcc, and must be called before the process opens any of the libraries.
func Libraries(dir string) error {
	if err := build(dir, dir); err != nil {
		return err
	}
	for name, value := range variables(dir, dir) {
		if name != "TMPDIR" {
			os.Setenv(name, value)
		}
	}
	return nil
}

// variables are the environment of programs that open the libraries in dir, which share files in the folder shared.
func variables(dir, shared string) map[string]string {
	vars := map[string]string{"FAKEGPU_CONTROL": filepath.Join(shared, "control"), "TMPDIR": shared}
	for _, lib := range []string{"cuda", "nccl", "cublaslt", "cudnn", "nvrtc", "cupti", "nvml"} {
		vars["GODDP_LIB"+strings.ToUpper(lib)] = filepath.Join(dir, "lib"+lib+".so")
	}
	return vars
}

// files are the sources, and libraries the compiler's arguments for each library.
var (
	files     = []string{"control.h", "cuda.h", "elements.h", "observe.h", "libcuda.c", "libnccl.c", "libcublaslt.c", "libcudnn.c", "libnvrtc.c", "libcupti.c", "libnvml.c"}
	libraries = [][]string{
		{"libcuda.c", "-o", "libcuda.so"},
		{"libnccl.c", "-o", "libnccl.so", "-L.", "-l:libcuda.so"},
		{"libcublaslt.c", "-o", "libcublaslt.so", "-L.", "-l:libcuda.so", "-lm"},
		{"libcudnn.c", "-o", "libcudnn.so", "-L.", "-l:libcuda.so", "-lm"},
		{"libnvrtc.c", "-o", "libnvrtc.so"},
		{"libcupti.c", "-o", "libcupti.so", "-L.", "-l:libcuda.so"},
		{"libnvml.c", "-o", "libnvml.so"},
	}
)

// build builds the libraries in a folder that is then moved to dir.
func build(folder, dir string) error {
	for _, file := range files {
		text, err := sources.ReadFile("src/" + file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
			return err
		}
	}
	for i, args := range libraries {
		args = append([]string{"-O1", "-g", "-shared", "-fPIC", "-pthread"}, args...)
		if i == 0 { // so that a library of another folder is not used
			args = append(args, "-Wl,-soname,"+filepath.Join(dir, "libcuda.so"))
		}
		cmd := exec.Command("gcc", args...)
		cmd.Dir = folder
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("gcc %s: %w\n%s", libraries[i][0], err, said)
		}
	}
	return nil
}

// Control sets the faults of the fake libraries, one in each line. The returned function removes
// the faults and makes calls that hang return.
func Control(lines ...string) (release func(), err error) {
	path := os.Getenv("FAKEGPU_CONTROL")
	if err := os.Remove(path + ".release"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text := strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, err
	}
	return func() {
		os.Remove(path)
		os.WriteFile(path+".release", nil, 0o600)
	}, nil
}
