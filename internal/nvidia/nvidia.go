// Package nvidia knows where the libraries of NVIDIA's toolkits are installed.
package nvidia

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/goddp/goddp/internal/dl"
)

// Search says where a library may be: the file that the variable env names,
// and then nothing else; the loader's path; the CUDA home; the folders of
// NVIDIA's packages in a Python environment. files are the library's names,
// the best first.
func Search(name, env string, files ...string) dl.Search {
	return dl.Search{Name: name, Env: env, Files: files, Dirs: append(homes(), wheels()...)}
}

// homes lists the folders of a CUDA toolkit.
func homes() []string {
	var dirs []string
	for _, home := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda"} {
		if home != "" {
			dirs = append(dirs, filepath.Join(home, "lib64"), filepath.Join(home, "lib"))
		}
	}
	return dirs
}

// wheels lists, as patterns, the folders that NVIDIA's Python packages put
// their libraries in: those of the environment that is active, then of the
// Python that is found first, then of the system's.
func wheels() []string {
	var roots []string
	for _, env := range []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX")} {
		if env != "" {
			roots = append(roots, env)
		}
	}
	if python, err := exec.LookPath("python3"); err == nil {
		roots = append(roots, filepath.Dir(filepath.Dir(python)))
	}
	roots = append(roots, "/usr/local", "/usr")
	var dirs []string
	for _, root := range roots {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			dirs = append(dirs, filepath.Join(root, "lib/python3*", packages, "nvidia/*/lib"))
		}
	}
	return dirs
}
