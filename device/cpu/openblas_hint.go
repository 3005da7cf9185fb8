package cpu

import (
	"os"
	"runtime"
	"slices"
	"strings"
)

// installHint returns the command that installs OpenBLAS on this system, or "install OpenBLAS"
// if the system is not known.
func installHint() string {
	if runtime.GOOS == "darwin" {
		return "brew install openblas"
	}
	release, _ := os.ReadFile("/etc/os-release")
	return installCommand(string(release))
}

// installCommand returns the command that installs OpenBLAS on the Linux distribution that an
// os-release file describes.
func installCommand(release string) string {
	var ids []string // ids: the distribution, and the distributions that it is derived from
	for line := range strings.Lines(release) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name == "ID" || name == "ID_LIKE" {
			ids = append(ids, strings.Fields(strings.Trim(value, `"'`))...)
		}
	}
	for _, d := range []struct{ id, command string }{
		{"debian", "apt-get install libopenblas0"},
		{"ubuntu", "apt-get install libopenblas0"},
		{"fedora", "dnf install openblas"},
		{"rhel", "dnf install openblas"},
		{"arch", "pacman -S openblas"},
		{"suse", "zypper install libopenblas_pthreads0"},
	} {
		if slices.Contains(ids, d.id) {
			return d.command
		}
	}
	return "install OpenBLAS"
}
