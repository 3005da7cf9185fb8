package cpu

import "testing"

// The command is that of the distribution, or of a distribution that it is derived from.
func TestInstallCommand(t *testing.T) {
	for release, want := range map[string]string{
		"NAME=\"Debian GNU/Linux\"\nID=debian\n":                  "apt-get install libopenblas0",
		"ID=ubuntu\nID_LIKE=debian\n":                             "apt-get install libopenblas0",
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n":               "apt-get install libopenblas0",
		"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n":          "dnf install openblas",
		"ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n": "zypper install libopenblas_pthreads0",
		"ID=alpine\n": "install OpenBLAS",
		"":            "install OpenBLAS",
	} {
		if got := installCommand(release, needsOpenBLAS); got != want {
			t.Errorf("%q: got %q, want %q", release, got, want)
		}
	}
	if got, want := installCommand("ID=fedora\n", needsOneDNN), "dnf install onednn"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
