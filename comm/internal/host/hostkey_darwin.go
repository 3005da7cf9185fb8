package host

import "golang.org/x/sys/unix"

// hostKey returns the name of this host: the id of its boot.
func hostKey() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }
