//go:build !linux

package daemon

import (
	"fmt"
	"os"
)

func play(kind, file string) {
	fmt.Fprintf(os.Stderr, "a daemon %q (%s) needs Linux\n", kind, file)
	os.Exit(1)
}
