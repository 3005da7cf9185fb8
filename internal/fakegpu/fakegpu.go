//go:build cgo && linux

package fakegpu

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed src
var sources embed.FS

// Variables are the environment variables that Libraries sets. A process without them opens the
// real libraries.
var Variables = []string{"GODDP_LIBCUDA", "GODDP_LIBNCCL", "GODDP_LIBCUBLASLT", "GODDP_LIBCUDNN", "GODDP_LIBNVRTC", "GODDP_LIBCUPTI", "GODDP_LIBNVML", "FAKEGPU_CONTROL"}

// Libraries builds libcuda, libnccl, libcublasLt, libcudnn, libnvrtc, libcupti and libnvml in dir. It sets
// environment variables, such as GODDP_LIBCUDA, so that this process and its children open them, and
// FAKEGPU_CONTROL to the file that Control writes. It needs gcc, and must be called before the
// process opens any of the libraries.
func Libraries(dir string) error {
	for _, file := range []string{"control.h", "cuda.h", "elements.h", "observe.h", "libcuda.c", "libnccl.c", "libcublaslt.c", "libcudnn.c", "libnvrtc.c", "libcupti.c", "libnvml.c"} {
		text, err := sources.ReadFile("src/" + file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"libcuda.c", "-o", "libcuda.so", "-Wl,-soname," + filepath.Join(dir, "libcuda.so")}, // so that a library of another folder is not used
		{"libnccl.c", "-o", "libnccl.so", "-L.", "-l:libcuda.so"},
		{"libcublaslt.c", "-o", "libcublaslt.so", "-L.", "-l:libcuda.so", "-lm"},
		{"libcudnn.c", "-o", "libcudnn.so", "-L.", "-l:libcuda.so", "-lm"},
		{"libnvrtc.c", "-o", "libnvrtc.so"},
		{"libcupti.c", "-o", "libcupti.so", "-L.", "-l:libcuda.so"},
		{"libnvml.c", "-o", "libnvml.so"},
	} {
		cmd := exec.Command("gcc", append([]string{"-O1", "-g", "-shared", "-fPIC", "-pthread"}, args...)...)
		cmd.Dir = dir
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("gcc %s: %w\n%s", args[0], err, said)
		}
	}
	for _, lib := range []string{"cuda", "nccl", "cublaslt", "cudnn", "nvrtc", "cupti", "nvml"} {
		os.Setenv("GODDP_LIB"+strings.ToUpper(lib), filepath.Join(dir, "lib"+lib+".so"))
	}
	os.Setenv("FAKEGPU_CONTROL", filepath.Join(dir, "control"))
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
