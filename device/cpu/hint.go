package cpu

import (
	"os"
	"runtime"
	"slices"
	"strings"
)

// These are the libraries that a user may have to install.
const (
	needsOpenBLAS = iota
	needsOneDNN
)

// names are the libraries' names.
var names = [2]string{"OpenBLAS", "oneDNN"}

// installHint returns the command that installs a library on this system, or "install NAME" if the system is not known.
func installHint(lib int) string {
	if runtime.GOOS == "darwin" {
		return "brew install " + strings.ToLower(names[lib])
	}
	release, _ := os.ReadFile("/etc/os-release")
	return installCommand(string(release), lib)
}

// installCommand returns the command that installs a library on the Linux distribution that an os-release file
// describes.
func installCommand(release string, lib int) string {
	var ids []string // ids: the distribution, and the distributions that it is derived from
	for line := range strings.Lines(release) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name == "ID" || name == "ID_LIKE" {
			ids = append(ids, strings.Fields(strings.Trim(value, `"'`))...)
		}
	}
	for _, d := range []struct {
		id, command string
		packages    [2]string
	}{
		{"debian", "apt-get install ", [2]string{"libopenblas0", "libdnnl-dev"}},
		{"ubuntu", "apt-get install ", [2]string{"libopenblas0", "libdnnl-dev"}},
		{"fedora", "dnf install ", [2]string{"openblas", "onednn"}},
		{"rhel", "dnf install ", [2]string{"openblas", "onednn"}},
		{"arch", "pacman -S ", [2]string{"openblas", "onednn"}},
		{"suse", "zypper install ", [2]string{"libopenblas_pthreads0", "libdnnl3"}},
	} {
		if slices.Contains(ids, d.id) {
			return d.command + d.packages[lib]
		}
	}
	return "install " + names[lib]
}
