package dl

import (
	"os"
	"os/exec"
	"path/filepath"
)

// NVIDIA returns the places of a library. If the environment variable env is set, it names the only
// place. Otherwise they are the loader's path, the CUDA home, and the folders of NVIDIA's packages
// in a Python environment, in this order. files are the library's names, the preferred one first.
func NVIDIA(name, env string, files ...string) Search {
	return Search{Name: name, Env: env, Files: files, Dirs: append(homes(), wheels()...)}
}

// homes returns the library folders of a CUDA toolkit.
func homes() []string {
	var dirs []string
	for _, home := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda"} {
		if home != "" {
			dirs = append(dirs, filepath.Join(home, "lib64"), filepath.Join(home, "lib"), filepath.Join(home, "extras/CUPTI/lib64"))
		}
	}
	return dirs
}

// wheels returns patterns of the library folders of NVIDIA's Python packages. It searches the active
// environment, then the environment of the first python3 in PATH, then the system's environment.
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
