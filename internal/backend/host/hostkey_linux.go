package host

import (
	"fmt"
	"os"
	"strings"
)

// hostKey names what processes must have in common to share memory: the boot
// of the kernel, and the network namespace, in which abstract sockets live.
func hostKey() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	netns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s", strings.TrimSpace(string(boot)), netns), nil
}
