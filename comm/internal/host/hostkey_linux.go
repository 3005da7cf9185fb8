package host

import (
	"fmt"
	"os"
	"strings"
)

// hostKey returns the name of this host: the kernel's boot id and the network namespace. Processes
// can share memory only if both are equal, because abstract sockets belong to a network namespace.
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
